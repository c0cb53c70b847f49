"""What methods with a critic share: its role, its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlframe import RoleSpec, Term, ops

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["critic_figures", "critic_role"]


def critic_role(name: str = "critic", column: str = "values") -> RoleSpec:
    """A trained model with one number a token, started from the policy's weights.

    Its values before the update become ``column``, (B, R). Options: ``roles.NAME.optim.lr``, ...
    """
    return RoleSpec(
        name,
        model="value",
        trained=True,
        outputs={"values": column},
        computes=("values",),
        init_from="policy",
    )


def critic_figures(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> dict[str, Term]:
    """Means and the clipped share under verl's names; all (b, R)."""
    return {
        "vf_clipfrac": Term(ops.value_clip_fraction(values, old_values, returns, clip)),
        "vpred_mean": Term(values),
        "values/mean": Term(old_values),
        "returns/mean": Term(returns),
    }

"""Cost models: which response is worse, and whether it is acceptable at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlframe import Column, DataError, RoleSpec, Row, Term, ops
from rlframe.config import check_range
from rlframe_algorithms.pairs import PairMethod, mean_of_pairs

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["CostModel"]


class CostModel(PairMethod):
    """Trains a cost C whose order is that of the pairs and whose sign says safe or unsafe.

    Safe RLHF (2310.12773, eq. 6), averaged over the pairs of the optimiser step::

        -log sigmoid(C(rejected) - C(chosen))
        - log sigmoid(s(chosen) C(chosen)) - log sigmoid(s(rejected) C(rejected))

    with s = +1 for an unsafe and -1 for a safe response: ``chosen`` is the safer one and gets the
    lower cost, costs above 0 are unsafe. Two columns say whether each is safe. Neither verl nor TRL
    has it; ``sign_coef=0`` leaves a reward model for -C.
    """

    @dataclass(frozen=True)
    class Config(PairMethod.Config):
        """Options of cost-model training."""

        chosen_safe_key: str = "chosen_safe"
        """Dataset column (true or false): whether the safer response is safe."""
        rejected_safe_key: str = "rejected_safe"
        """Dataset column (true or false): whether the other response is safe."""
        sign_coef: float = 1.0
        """Weight of the two sign terms, at least 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "sign_coef", 0)

    config: Config
    columns: ClassVar[tuple[Column, ...]] = (
        *PairMethod.columns,
        Column("safe", "B", "bool", "data", "whether a response is acceptable"),
    )

    def roles(self) -> tuple[RoleSpec, ...]:
        """The cost model alone, under the name of the model that is trained."""
        return (RoleSpec("policy", model="score", trained=True, computes=("scores",)),)

    def row_columns(self, row: Row, better: bool) -> Mapping[str, Any]:
        """Whether the response is safe. Raises DataError where its column does not say so."""
        key = self.config.chosen_safe_key if better else self.config.rejected_safe_key
        value = row.columns.get(key)
        if value not in (True, False):
            raise DataError(
                f"{row.source}: column '{key}' is {value!r}, not true or false: name the right one "
                f"by algo.{'chosen' if better else 'rejected'}_safe_key=COLUMN"
            )
        return {"safe": bool(value)}

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """``pair_loss``, ``chosen_sign_loss``, ``rejected_sign_loss``: one value a pair."""
        better, worse = ops.pair_rows(batch["group_ids"], batch["chosen"])
        costs, coef = out.scores, self.config.sign_coef
        signs = ops.preference_loss(_sign(batch["safe"], costs) * costs)
        return {
            "pair_loss": mean_of_pairs(ops.preference_loss(costs[worse] - costs[better])),
            "chosen_sign_loss": mean_of_pairs(signs[better], coef),
            "rejected_sign_loss": mean_of_pairs(signs[worse], coef),
        }

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Shares of pairs and of signs that are right, and both mean costs."""
        better, worse = ops.pair_rows(batch["group_ids"], batch["chosen"])
        costs = out.scores
        right = (_sign(batch["safe"], costs) * costs > 0).to(costs.dtype)
        return {
            "accuracy": mean_of_pairs((costs[better] < costs[worse]).to(costs.dtype)),
            "sign_accuracy": mean_of_pairs((right[better] + right[worse]) / 2),
            "chosen_cost": mean_of_pairs(costs[better]),
            "rejected_cost": mean_of_pairs(costs[worse]),
        }


def _sign(safe: Tensor, like: Tensor) -> Tensor:
    """(b,) bool -> -1 for safe, +1 for unsafe, (b,)."""
    return 1 - 2 * safe.to(like.dtype)

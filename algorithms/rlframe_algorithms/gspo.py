"""GSPO: one ratio a response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import Term, ops
from rlframe.algorithm import TokenReduction
from rlframe.config import check_range
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["GSPO"]


class GSPO(PolicyGradient):
    """Group sequence policy optimisation (2507.18071)::

        s_i  = exp(1/|o_i| sum_t log(pi / pi_old));   A_i as in GRPO
        loss = 1/B sum_i -min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i)

    The ratio is the geometric mean over a response's tokens, not their product. No KL.

    verl: ``policy_loss.loss_mode=gspo``, with ``loss_agg_mode=seq-mean-token-mean`` by hand. TRL:
    ``importance_sampling_level="sequence"``, with ``epsilon=3e-4 epsilon_high=4e-4`` by hand.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of GSPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-mean"
        """seq-mean-token-mean is the mean over responses; others weigh long ones more."""
        clip_ratio: float = 3e-4
        """How far the response's ratio may fall below 1, in (0, 1]."""
        clip_ratio_high: float | None = 4e-4
        """How far the response's ratio may rise above 1, above 0; None takes clip_ratio."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_ratio", above=0, high=1)
            check_range(self, "clip_ratio_high", above=0)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The response's loss at each of its tokens: (b, R)."""
        return self._clipped(out, batch)[0]

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The share of tokens in clipped responses, beside the base's figures."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            figures["pg_clipfrac"] = Term(self._clipped(out, batch)[1])
        return figures

    def _clipped(self, out: Output, batch: TensorDict) -> tuple[Tensor, Tensor]:
        return ops.sequence_clipped(
            out.logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            batch["loss_mask"],
            self.config.clip_ratio,
            self.config.clip_ratio_high,
        )

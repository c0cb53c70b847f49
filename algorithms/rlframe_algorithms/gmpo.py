"""GMPO: the geometric mean of clipped ratios."""

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

__all__ = ["GMPO"]


class GMPO(PolicyGradient):
    """Geometric-mean policy optimisation (2507.20673)::

        c_t  = min(log r_t, 0.4) where A > 0;  max(log r_t, -0.4) where A < 0
        loss = 1/B sum_i -A_i exp(1/|o_i| sum_t c_t);   A_i as in GRPO, no KL

    verl: ``policy_loss.loss_mode=geo_mean`` takes the mean within each micro-batch and adds these
    up, so that its loss grows with their number; here it is the mean over the mini-batch for every
    split. Its clip is ``clip_ratio``, 0.2 unless it is set.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of GMPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-mean"
        """seq-mean-token-mean is the mean over responses; others weigh long ones more."""
        clip_log_ratio: float = 0.4
        """How far the log ratio may fall below 0, nats, above 0."""
        clip_log_ratio_high: float = 0.4
        """How far the log ratio may rise above 0, nats, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_log_ratio", above=0)
            check_range(self, "clip_log_ratio_high", above=0)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The response's loss at each of its tokens: (b, R)."""
        old, advantages, mask = batch["old_logprobs"], batch["advantages"], batch["loss_mask"]
        return ops.geometric_clipped(out.logprobs, old, advantages, mask, *self._clip)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The share of clipped tokens, beside the base's figures."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            outside = ops.geometric_outside(
                out.logprobs, batch["old_logprobs"], batch["advantages"], *self._clip
            )
            figures["pg_clipfrac"] = Term(outside)
        return figures

    @property
    def _clip(self) -> tuple[float, float]:
        return self.config.clip_log_ratio, self.config.clip_log_ratio_high

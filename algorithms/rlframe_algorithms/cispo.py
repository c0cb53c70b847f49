"""CISPO: the weight of importance is clipped, the gradient is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import Term, ops
from rlframe.config import check_range
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["CISPO"]


class CISPO(PolicyGradient):
    """Clipped importance-sampling policy optimisation (MiniMax-M1, 2506.13585)::

        loss = 1 / sum |o_i| * sum_i sum_t -sg(min(r, 1 + clip_ratio_high)) A_i log pi
        A_i as in GRPO; no KL, no lower bound

    The paper tunes the upper bound and does not print it; a weight of at most 5 follows ScaleRL
    (2510.13786).

    verl: ``policy_loss.loss_mode=cispo`` clips at ``1 +- clip_ratio``, 0.2 unless set, on both
    sides. TRL: ``loss_type="cispo"``, whose ``epsilon_high`` is the largest weight itself.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of CISPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        clip_ratio_high: float = 4.0
        """How far the weight pi / pi_old may rise above 1, above 0."""
        clip_ratio: float | None = None
        """How far it may fall below 1, in (0, 1]; None sets no lower bound."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_ratio_high", above=0)
            check_range(self, "clip_ratio", above=0, high=1)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The weighted negative log-likelihood of each token: (b, R)."""
        return ops.weight_clipped(
            out.logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            self.config.clip_ratio_high,
            self.config.clip_ratio,
        )

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The share of tokens whose weight is clipped, beside the base's figures."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            ratio = ops.log_ratio(out.logprobs, batch["old_logprobs"]).exp()
            outside = ratio > 1 + self.config.clip_ratio_high
            if self.config.clip_ratio is not None:
                outside |= ratio < 1 - self.config.clip_ratio
            figures["pg_clipfrac"] = Term(outside.float())
        return figures

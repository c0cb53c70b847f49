"""SAPO: a soft gate in place of the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import ops
from rlframe.algorithm import TokenReduction
from rlframe.config import check_range
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["SAPO"]


class SAPO(PolicyGradient):
    """Soft adaptive policy optimisation (2511.20347)::

        f(r) = 4 / tau sigmoid(tau (r - 1)),  tau = 1.0 where A > 0, else 1.05
        loss = 1/B sum_i 1/|o_i| sum_t -f(r) A_i;   A_i as in GRPO, no KL

    The gradient's weight is 1 at r = 1 and fades on both sides.

    verl: ``policy_loss.loss_mode=sapo``, ``tau_pos``, ``tau_neg``. TRL: ``loss_type="sapo"``,
    ``sapo_temperature_pos``, ``sapo_temperature_neg``.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of SAPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""
        tau_positive: float = 1.0
        """Steepness of the gate where A > 0, above 0."""
        tau_negative: float = 1.05
        """Steepness of the gate where A <= 0, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "tau_positive", above=0)
            check_range(self, "tau_negative", above=0)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The gated loss of each token: (b, R)."""
        return ops.soft_gated(
            out.logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            self.config.tau_positive,
            self.config.tau_negative,
        )

"""TOPR: bad responses are pushed away only as far as the policy still gives them."""

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

__all__ = ["TOPR"]


class TOPR(PolicyGradient):
    """Tapered off-policy REINFORCE (2503.14286)::

        w_i  = 1 where A_i >= 0, else sg(min(pi(o_i) / pi_old(o_i), 1))
        loss = 1/B sum_i -w_i A_i log pi(o_i)

    The ratio is that of the whole response, the product over its tokens. The paper scores 1 and -1
    without a baseline: ``advantage=reward`` with such rewards. For rewards of any scale the default
    takes the group's mean as the border between good and bad. No KL.

    verl 0.9.1 and TRL have none.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of TOPR."""

        advantage: Advantage = "dr-grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reduction: TokenReduction = "seq-mean-token-sum"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""
        clip_weight: float = 1.0
        """Largest weight of a bad response, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_weight", above=0)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The weighted negative log-likelihood of each token: (b, R)."""
        old, advantages, mask = batch["old_logprobs"], batch["advantages"], batch["loss_mask"]
        return ops.tapered(out.logprobs, old, advantages, mask, self.config.clip_weight)

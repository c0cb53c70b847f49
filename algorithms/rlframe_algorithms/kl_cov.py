"""KL-Cov: a KL penalty on the few tokens that would cost the most entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import Term, ops
from rlframe.config import check_range
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["KLCov"]


class KLCov(PolicyGradient):
    """GRPO's advantages and an unclipped ratio, with the KL by covariance of 2505.22617::

        cov_t = (log pi_t - mean log pi) (A_t - mean A), means over the mini-batch's N tokens
        top   = the cov_share N tokens of the largest cov_t
        loss_t = -r A + (cov_kl_coef |log pi_old - log pi| if t is in top else 0)

    The tokens are chosen over the whole mini-batch; equal ones by a hash of episode and position,
    seeded by ``cov_seed``. ``|log pi_old - log pi|`` is how the paper's authors estimate its
    D_KL(pi_old || pi): the plain difference would push the ratio away on one side. Its gradient
    fades within 0.001 nats, where rounding would choose the sign.

    Defaults are the paper's. verl (``loss_mode=kl_cov``) chooses in each micro-batch, so that its
    tokens depend on the split; TRL has no such loss.
    """  # noqa: D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of KL-Cov."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        cov_share: float = 2e-4
        """Share of the tokens with the penalty, from 0 to 1; at least one where above 0."""
        cov_kl_coef: float = 1.0
        """Weight of their KL to the weights before the update, at least 0."""
        cov_seed: int = 0
        """Seed of the choice among equal tokens, at least 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "cov_share", 0, 1)
            check_range(self, "cov_kl_coef", 0)
            check_range(self, "cov_seed", 0)

    config: Config

    def minibatch(self, out: Output, batch: TensorDict) -> Mapping[str, Tensor]:
        """The tokens of the mini-batch with the penalty, (B, R) bool."""
        mask, config = batch["loss_mask"], self.config
        covariance = ops.token_covariance(out.logprobs, batch["advantages"], mask)
        keys = ops.token_keys(
            batch["episode_ids"], batch["prompt_lengths"], mask.shape[1], config.cov_seed
        )
        count = ops.share_of_tokens(mask, config.cov_share)
        return {"cov_top": ops.top_tokens(covariance, mask, count, keys)}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The unclipped loss, with the penalty at the chosen tokens: (b, R)."""
        ratio = ops.log_ratio(out.logprobs, batch["old_logprobs"]).exp()
        loss: Tensor = -ratio * batch["advantages"]
        penalty = self.config.cov_kl_coef * ops.absolute_kl(out.logprobs, batch["old_logprobs"])
        return loss + penalty.masked_fill(~batch["cov_top"], 0.0)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The KL of the old to the new policy and the share of chosen tokens."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            figures["cov_top"] = Term(batch["cov_top"])
        return figures

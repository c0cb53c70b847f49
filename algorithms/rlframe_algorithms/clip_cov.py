"""Clip-Cov: no gradient for a few tokens that would cost the most entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import Term, ops
from rlframe.algorithm import TokenReduction
from rlframe.config import check_range
from rlframe_algorithms.grpo import GRPO

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["ClipCov"]


class ClipCov(GRPO):
    """GRPO without KL, with the clip by covariance of 2505.22617::

        cov_t = (log pi_t - mean log pi) (A_t - mean A), means over the mini-batch's N tokens
        drawn = cov_share N tokens at random, of those with cov_low < cov_t < cov_high
        loss_t = 0 if t is drawn else -min(r A, clip(r, 1 - clip_ratio, 1 + clip_ratio_high) A)

    A token that the ratio's clip already holds is not drawn. The draw is over the whole mini-batch
    and follows the token's episode and position: micro-batches, ranks and order change nothing,
    ``cov_seed`` does. Drawn tokens stay in the denominator.

    Defaults are the paper's; the ratio's clip is GRPO's, where its authors' scripts open it to 1.
    verl (``loss_mode=clip_cov``) draws in each micro-batch, so that its tokens depend on the split;
    TRL has no such loss.
    """  # noqa: D415

    @dataclass(frozen=True)
    class Config(GRPO.Config):
        """Options of Clip-Cov."""

        reduction: TokenReduction = "token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length."""
        kl_coef: float = 0.0
        """Weight of the KL loss to the reference, at least 0; 0 starts no reference."""
        cov_share: float = 2e-4
        """Share of the tokens that is drawn, from 0 to 1; at least one token where above 0."""
        cov_low: float = 1.0
        """Covariance above which tokens are drawn."""
        cov_high: float = 5.0
        """Covariance below which tokens are drawn."""
        cov_seed: int = 0
        """Seed of the draw, at least 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "cov_share", 0, 1)
            check_range(self, "cov_seed", 0)
            if not self.cov_low < self.cov_high:
                raise ValueError(f"cov_low must be below cov_high, not {self.cov_low!r}")

    config: Config

    @property
    def capabilities(self) -> frozenset[str]:  # type: ignore[override]  # the options decide
        """Those of GRPO; drawn tokens have no gradient."""
        return super().capabilities | {"drops-tokens"}

    def minibatch(self, out: Output, batch: TensorDict) -> Mapping[str, Tensor]:
        """The drawn tokens of the mini-batch, (B, R) bool."""
        mask, config = batch["loss_mask"], self.config
        covariance = ops.token_covariance(out.logprobs, batch["advantages"], mask)
        held = ops.clip_fractions(*self._ratio_inputs(out, batch), *self._clip)[0] > 0
        inside = (covariance > config.cov_low) & (covariance < config.cov_high)
        keys = ops.token_keys(
            batch["episode_ids"], batch["prompt_lengths"], mask.shape[1], config.cov_seed
        )
        count = ops.share_of_tokens(mask, config.cov_share)
        return {"cov_drawn": ops.draw_tokens(mask & inside & ~held, count, keys)}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The clipped loss, 0 at the drawn tokens: (b, R)."""
        return super().policy_loss(out, batch).masked_fill(batch["cov_drawn"], 0.0)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """GRPO's figures and the share of drawn tokens."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            figures["cov_drawn"] = Term(batch["cov_drawn"])
        return figures

"""REINFORCE++: returns of tokens, normalised over the whole batch; and its baseline form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlframe import ops
from rlframe.config import check_range
from rlframe_algorithms.clipped import Clipped
from rlframe_algorithms.policy_gradient import Advantage

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe import Batch

__all__ = ["REINFORCEPlusPlus", "REINFORCEPlusPlusBaseline"]


class REINFORCEPlusPlus(Clipped):
    """REINFORCE++ (2501.03262)::

        r_t  = R at the last sampled token, else 0;  r_t -= 0.01 (log pi_old - log ref)
        A_t  = sum over k >= t of gamma^(k - t) r_k, then (A - mean) / std over the batch's tokens
        loss = 1 / sum |o_i| * sum_i sum_t -min(r A_t, clip(r, 0.8, 1.2) A_t)

    R is what ``advantage`` makes of the outcome; the paper's is the reward itself. Tokens of tools
    are skipped in returns and statistics (population variance, eps 1e-8). The environment's token
    rewards are added where there are any.

    verl: ``adv_estimator=reinforce_plus_plus use_kl_in_reward=true``; it whitens each call's rows
    by the sample variance. TRL has none; OpenRLHF's ``init_kl_coef`` is ``kl_reward_coef``.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(Clipped.Config):
        """Options of REINFORCE++."""

        kl_reward_coef: float = 0.01
        """Weight of the KL in the reward, at least 0; 0 is off. The first one under kl_target."""
        gamma: float = 1.0
        """Discount a token, from 0 to 1."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "gamma", 0, 1)

    config: Config
    reads_if_there = ("token_rewards",)

    @property
    def capabilities(self) -> frozenset[str]:  # type: ignore[override]
        """None: the batch's mean is subtracted from every token."""
        return frozenset()

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns of the base, and the mask."""
        return tuple(dict.fromkeys((*super().reads, "response_mask")))

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Normalised returns of tokens, (B, R)."""
        import torch

        mask = batch["response_mask"] & batch["train"][:, None]
        mask &= ~torch.isnan(batch["rewards"])[:, None]
        rewards = ops.outcome_rewards(self.outcomes(batch), mask)
        if self.config.kl_reward_coef:
            rewards = rewards + self.kl_rewards(batch)
        if "token_rewards" in batch:
            rewards = rewards + batch["token_rewards"]
        returns = ops.reward_to_go(rewards, mask, self.config.gamma)
        return {"advantages": ops.masked_whiten(returns, mask, batch.sum), **self.kept(batch)}

    def outcomes(self, batch: Batch) -> Tensor:
        """What stands at the last token of each response: (B,)."""
        if self.config.advantage == "gdpo":
            return self.response_advantages(batch)
        columns = self.shaped(batch, kl=False)
        return ops.outcome_advantages(self.config.advantage, columns, batch.sum)


class REINFORCEPlusPlusBaseline(REINFORCEPlusPlus):
    """REINFORCE++ with the group's mean as baseline (2501.03262, section 3.3)::

        A = R - mean R of the group, then normalised over the batch's tokens; KL as a k2 loss

    verl: ``adv_estimator=reinforce_plus_plus_baseline`` with ``use_kl_loss``, coefficient 0.001.
    TRL: ``scale_rewards="batch"`` is close: it divides by the std of the rewards themselves.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(REINFORCEPlusPlus.Config):
        """Options of the baseline form."""

        advantage: Advantage = "dr-grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        kl_reward_coef: float = 0.0
        """Weight of the KL in the reward, at least 0; 0 is off. The first one under kl_target."""
        kl_coef: float = 0.001
        """Weight of the KL loss to the reference, at least 0; 0 starts no reference."""
        kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k2"
        """k1, k2, k3, or k3+ (k3's value with k2's gradient)."""

    config: Config

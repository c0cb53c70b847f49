"""VAPO: PPO for long reasoning, with a critic that is pre-trained and sees whole returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rlframe import Term
from rlframe.batching.columns import Column
from rlframe.config import check_range
from rlframe_algorithms.ppo import PPO

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["VAPO"]


class VAPO(PPO):
    """Value-augmented PPO (2504.05118)::

        lambda_policy = 1 - 1 / (length_alpha l), in [0, 1], l the tokens of the response
        lambda_critic = 1: the critic's targets are Monte-Carlo returns (VC-PPO, 2503.01491)
        loss = PPO's, clip 0.2 / 0.28, token-mean, + nll_coef * mean of -log pi over the tokens of
               the mini-batch's correct responses

    ``critic_warmup`` steps train the critic alone. Defaults are the paper's but for its scale:
    5 steps of warm-up where it takes 50, 8 samples a prompt where it takes 16. A response counts
    as correct from ``correct_reward`` on.

    verl and TRL have no VAPO; verl's PPO has one lambda for both models and starts the policy and
    the critic together.
    """  # noqa: D415

    @dataclass(frozen=True)
    class Config(PPO.Config):
        """Options of VAPO."""

        clip_ratio_high: float | None = 0.28
        """How far the ratio may rise above 1, above 0; None takes clip_ratio."""
        critic_lambda: float | None = 1.0
        """Lambda of the critic's returns, from 0 to 1; None takes the policy's."""
        length_alpha: float | None = 0.05
        """Makes the policy's lambda 1 - 1 / (alpha * length), above 0; None takes gae_lambda."""
        critic_warmup: int = 5
        """Steps at the start in which the critic alone learns."""
        warmup_returns: Literal["gae", "monte-carlo"] = "monte-carlo"
        """What the critic learns in them: gae, or monte-carlo (lambda 1, as VC-PPO)."""
        nll_coef: float = 0.1
        """Weight of the likelihood of correct responses, at least 0."""
        correct_reward: float = 1.0
        """Reward from which on a response is correct."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "nll_coef", 0)
            check_range(self, "correct_reward")

    config: Config
    columns: ClassVar[tuple[Column, ...]] = (
        *PPO.columns,
        Column("correct_mask", "BR", "bool", "algorithm", "tokens of correct responses"),
    )
    masks: ClassVar[tuple[str, ...]] = ("loss_mask", "correct_mask")

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """PPO's columns, and the tokens of correct responses."""
        made = super().advantages(batch)
        right = batch["rewards"] >= self.config.correct_reward
        return {**made, "correct_mask": made["loss_mask"] & right[:, None]}

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """PPO's terms and the likelihood of what was right."""
        terms = super().loss(role, out, batch)
        if role == "policy" and self.config.nll_coef:
            coef = self.config.nll_coef
            terms["nll_loss"] = Term(-out.logprobs, mask="correct_mask", coef=coef)
        return terms

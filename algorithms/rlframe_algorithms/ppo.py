"""PPO: a critic's values, generalised advantage estimation, clipped losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlframe import RoleSpec, Term, ops
from rlframe.batching.columns import Column
from rlframe.config import check_choice, check_range
from rlframe_algorithms.critics import critic_figures, critic_role
from rlframe_algorithms.kl_in_reward import KLInReward

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["PPO"]

_WARMUP = "critic_warmup"
_EXPLAINED = "vf_explained_var"


class PPO(KLInReward):
    """Proximal policy optimisation (1707.06347) with a critic of its own (1909.08593).

    Advantages by GAE (1506.02438) from the outcome at the last token that the policy sampled, the
    environment's token rewards, and ``-kl_reward_coef * KL_t``::

        delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma lambda A_{t+1};   R = A + V
        policy  -min(r A, clip(r, 1 - clip_ratio, 1 + clip_ratio_high) A), r = pi / pi_old
        critic  1/2 max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2)

    Tokens of tools are skipped: value and advantage are carried over them. ``critic_lambda`` apart
    from ``gae_lambda`` is VC-PPO's decoupled GAE (2503.01491), and
    ``warmup_returns=monte-carlo`` its pre-training of the critic. A row without a reward is left
    out of both losses.

    Defaults are the paper's, with gamma 1 as in 1909.08593; ``epochs`` and ``minibatch_prompts``
    are the paper's K and M. Differences from verl: lambda is 0.95 where verl takes 1; the dual clip
    is off, where verl has it at 3; advantages are whitened over the whole batch and all ranks; the
    policy waits for exactly ``critic_warmup`` steps, where verl waits for one less. From TRL: the
    critic is a model of its own, so there is no ``vf_coef``; the KL in the reward is off by
    default, where TRL has it at 0.05; rewards are not whitened.
    """

    @dataclass(frozen=True)
    class Config(KLInReward.Config):
        """Options of PPO."""

        epochs: int = 2
        """Passes over each collected batch, at least 1."""
        gamma: float = 1.0
        """Discount a token, from 0 to 1."""
        gae_lambda: float = 0.95
        """Lambda of the policy's advantages, from 0 to 1."""
        length_alpha: float | None = None
        """Makes the policy's lambda 1 - 1 / (alpha * length), above 0; None takes gae_lambda."""
        critic_lambda: float | None = None
        """Lambda of the critic's returns, from 0 to 1; None takes the policy's (VC-PPO: 1)."""
        whiten: bool = True
        """Give the batch's advantages mean 0 and variance 1."""
        clip_ratio: float = 0.2
        """How far the ratio pi / pi_old may fall below 1, in (0, 1]."""
        clip_ratio_high: float | None = None
        """How far the ratio may rise above 1, above 0; None takes clip_ratio."""
        dual_clip: float | None = None
        """Cap of the loss at -dual_clip * A where A < 0 (1912.09729), above 1; None is off."""
        value_clip: float | None = 0.5
        """How far a value may move from what it was before the update; None is any way."""
        critic_warmup: int = 0
        """Steps at the start in which the critic alone learns."""
        warmup_returns: Literal["gae", "monte-carlo"] = "gae"
        """What the critic learns in them: gae, or monte-carlo (lambda 1, as VC-PPO)."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            for name in ("gamma", "gae_lambda", "critic_lambda"):
                check_range(self, name, 0, 1)
            check_range(self, "length_alpha", above=0)
            check_range(self, "clip_ratio", above=0, high=1)
            check_range(self, "clip_ratio_high", above=0)
            check_range(self, "dual_clip", above=1)
            check_range(self, "value_clip", above=0)
            check_range(self, "critic_warmup", 0)
            check_choice(self, "warmup_returns", "gae", "monte-carlo")

    config: Config
    reads_if_there: ClassVar[tuple[str, ...]] = ("token_rewards",)
    columns: ClassVar[tuple[Column, ...]] = (
        Column(_EXPLAINED, "B", "float32", "algorithm", "1 - Var(R - V) / Var(R) of the batch"),
    )

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._steps = 0

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """Rewards, values and masks; both log-probabilities where the reward has a KL."""
        return tuple(dict.fromkeys((*super().reads, "response_mask", "values")))

    def roles(self) -> tuple[RoleSpec, ...]:
        """The policy, from the end of the warm-up on; a reference where needed; the critic."""
        policy, *others = super().roles()
        policy = dataclasses.replace(policy, from_step=self.config.critic_warmup + 1)
        return (policy, *others, critic_role())

    # --- learning -----------------------------------------------------------------------------

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Advantages, returns and the rows that count, all (B, R)."""
        import torch

        mask = batch["response_mask"] & batch["train"][:, None]
        mask &= ~torch.isnan(batch["rewards"])[:, None]
        rewards, values = self.token_rewards(batch, mask), batch["values"]
        gamma, lam, critic_lam = (
            self.config.gamma,
            self._policy_lambda(mask),
            self._critic_lambda(batch),
        )
        advantages, returns = ops.gae(rewards, values, mask, gamma, lam)
        if critic_lam is not None:
            returns = ops.gae(rewards, values, mask, gamma, critic_lam)[1]
        explained = ops.explained_variance(returns, values, mask, batch.sum)
        if self.config.whiten:
            advantages = ops.masked_whiten(advantages, mask, batch.sum)
        return {
            "advantages": advantages,
            "returns": returns,
            "loss_mask": mask,
            _EXPLAINED: explained.float().expand(len(mask)),
        }

    def token_rewards(self, batch: Batch, mask: Tensor) -> Tensor:
        """The reward of each token: outcome, environment's, KL; (B, R)."""
        rewards = ops.outcome_rewards(batch["rewards"], mask)
        if "token_rewards" in batch:
            rewards = rewards + batch["token_rewards"]
        if self.config.kl_reward_coef:
            rewards = rewards + self.kl_rewards(batch)
        return rewards

    def _policy_lambda(self, mask: Tensor) -> float | Tensor:
        """Lambda of the policy's advantages: one number, or (B,) by the rows' lengths."""
        if self.config.length_alpha is None:
            return self.config.gae_lambda
        lengths = mask.sum(1).clamp(min=1).double()
        return (1 - 1 / (self.config.length_alpha * lengths)).clamp(0, 1)

    def _critic_lambda(self, batch: Batch) -> float | None:
        """Lambda of the returns where it is not the policy's."""
        if self.config.warmup_returns == "monte-carlo" and batch.scalar(_WARMUP):
            return 1.0
        return self.config.critic_lambda

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """PPO's clipped loss: (b, R)."""
        return ops.clipped_surrogate(*self._ratio_inputs(out, batch), *self._clip)

    def value_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The clipped squared error: (b, R)."""
        return ops.clipped_value_loss(
            out.values, batch["values"], batch["returns"], self.config.value_clip
        )

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Clip fractions, KL of the old to the new policy, the critic's fit; verl's names."""
        figures = super().metrics(role, out, batch)
        if role == "critic":
            figures |= critic_figures(
                out.values, batch["values"], batch["returns"], self.config.value_clip
            )
            figures["advantages/mean"] = Term(batch["advantages"])
            figures[_EXPLAINED] = Term(batch[_EXPLAINED], reduction="mean")
        elif role == "policy":
            clipped, capped = ops.clip_fractions(*self._ratio_inputs(out, batch), *self._clip)
            figures["pg_clipfrac"] = Term(clipped)
            figures["pg_clipfrac_lower"] = Term(capped)
            figures["ppo_kl"] = Term(ops.kl_value(batch["old_logprobs"], out.logprobs))
        return figures

    @property
    def _clip(self) -> tuple[float, float | None, float | None]:
        return self.config.clip_ratio, self.config.clip_ratio_high, self.config.dual_clip

    @staticmethod
    def _ratio_inputs(out: Output, batch: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
        return out.logprobs, batch["old_logprobs"], batch["advantages"]

    # --- state --------------------------------------------------------------------------------

    def scalars(self) -> Mapping[str, float]:
        """Those of the base, and whether the critic alone learns in this step."""
        alone = self._steps < self.config.critic_warmup
        return {**super().scalars(), _WARMUP: float(alone)}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Count the step."""
        super().after_step(metrics)
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """That of the base, and the steps done."""
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._steps = int(state["steps"])

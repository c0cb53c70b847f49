"""GRPO: advantages from the samples of one prompt, no critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlframe import Algorithm, Term, ops
from rlframe.algorithm import TokenReduction
from rlframe.config import check_range

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["GRPO"]


class GRPO(Algorithm):
    """Group-relative policy optimisation (DeepSeekMath, 2402.03300) with a KL loss to a reference.

    Defaults are the paper's, with these differences: 8 samples a prompt where the paper draws 64,
    and the KL loss has the paper's value (k3) with the gradient of KL(pi || ref); the paper's own
    loss is ``kl_estimator=k3``. verl reduces by ``token-mean`` by default; the paper's equation 3
    is ``seq-mean-token-mean``, taken here.

    Dr. GRPO (2503.20783) is ``normalise_std=false reduction=fixed-length kl_coef=0``.
    """

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of GRPO."""

        reduction: TokenReduction = "seq-mean-token-mean"
        """token-mean, seq-mean-token-mean, seq-mean-token-sum or fixed-length (Dr. GRPO)."""
        kl_coef: float = 0.04
        """Weight of the KL loss to the reference, at least 0; 0 starts no reference."""
        clip_ratio: float = 0.2
        """How far the ratio pi / pi_old may fall below 1, in (0, 1]."""
        clip_ratio_high: float | None = None
        """How far the ratio may rise above 1, above 0; None takes clip_ratio."""
        dual_clip: float | None = None
        """Cap of the loss at -dual_clip * A where A < 0 (1912.09729), above 1; None is off."""
        normalise_std: bool = True
        """Divide advantages by the group's standard deviation; off in Dr. GRPO."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if self.samples_per_prompt < 2:
                raise ValueError(
                    f"samples_per_prompt must be at least 2, not {self.samples_per_prompt}: "
                    "others give the baseline"
                )
            check_range(self, "clip_ratio", above=0, high=1)
            check_range(self, "clip_ratio_high", above=0)
            check_range(self, "dual_clip", above=1)

    config: Config
    capabilities: ClassVar[frozenset[str]] = frozenset({"group-relative"})

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Normalised rewards of the group, (B,)."""
        if self.config.normalise_std:
            return {"advantages": ops.group_normalised(batch)}
        return {"advantages": ops.group_mean_baseline(batch)}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """PPO's clipped loss: (b, R)."""
        return ops.clipped_surrogate(*self._ratio_inputs(out, batch), *self._clip)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Clip fractions and the KL of the old to the new policy, under verl's names."""
        if role != "policy":
            return {}
        clipped, capped = ops.clip_fractions(*self._ratio_inputs(out, batch), *self._clip)
        return {
            "pg_clipfrac": Term(clipped),
            "pg_clipfrac_lower": Term(capped),
            "ppo_kl": Term(ops.kl_value(batch["old_logprobs"], out.logprobs)),
        }

    @property
    def _clip(self) -> tuple[float, float | None, float | None]:
        return self.config.clip_ratio, self.config.clip_ratio_high, self.config.dual_clip

    @staticmethod
    def _ratio_inputs(out: Output, batch: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
        return out.logprobs, batch["old_logprobs"], batch["advantages"]

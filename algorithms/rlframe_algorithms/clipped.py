"""Base of the methods with PPO's clipped loss and no critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe import Term, ops
from rlframe.config import check_range
from rlframe_algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["Clipped"]


class Clipped(PolicyGradient):
    """``-min(r A, clip(r, 1 - clip_ratio, 1 + clip_ratio_high) A)``, ``r = pi / pi_old``."""

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of the clipped loss."""

        clip_ratio: float = 0.2
        """How far the ratio pi / pi_old may fall below 1, in (0, 1]."""
        clip_ratio_high: float | None = None
        """How far the ratio may rise above 1, above 0; None takes clip_ratio."""
        dual_clip: float | None = None
        """Cap of the loss at -dual_clip * A where A < 0 (1912.09729), above 1; None is off."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "clip_ratio", above=0, high=1)
            check_range(self, "clip_ratio_high", above=0)
            check_range(self, "dual_clip", above=1)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """PPO's clipped loss: (b, R)."""
        return ops.clipped_surrogate(*self._ratio_inputs(out, batch), *self._clip)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """Clip fractions and the KL of the old to the new policy, under verl's names."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            clipped, capped = ops.clip_fractions(*self._ratio_inputs(out, batch), *self._clip)
            figures |= {"pg_clipfrac": Term(clipped), "pg_clipfrac_lower": Term(capped)}
        return figures

    @property
    def _clip(self) -> tuple[float, float | None, float | None]:
        return self.config.clip_ratio, self.config.clip_ratio_high, self.config.dual_clip

    @staticmethod
    def _ratio_inputs(out: Output, batch: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
        return out.logprobs, batch["old_logprobs"], batch["advantages"]

"""When trainer and sampler disagree on the probability of what was sampled: options, columns.

Every method has these options; :meth:`Algorithm.loss` applies the weights, so that none can forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlframe.config.checks import check_choice, check_range

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.batching.batch import Batch

__all__ = [
    "RolloutCorrection",
    "corrected_mask",
    "correction_reads",
    "correction_weight",
    "with_old_logprobs",
]


@dataclass(frozen=True)
class RolloutCorrection:
    """Options of every method, by ``w = pi_old / pi_rollout``.

    ``pi_old`` are the trainer's probabilities before the update. Under ``bypass`` they are the
    sampler's: the ratio pi / pi_old then holds w, which is multiplied once and by nothing else.
    """

    rollout_correction: Literal["off", "truncate", "mask", "bypass"] = "off"
    """off; truncate: the loss times min(w, cap); mask: the loss times w, out of [low, high] left
    out; bypass: the sampler's log-probabilities are the old ones."""
    rollout_level: Literal["token", "sequence"] = "token"
    """token, or sequence: the product of a response's weights."""
    rollout_cap: float = 2.0
    """Cap of truncate, above 0 (TIS)."""
    rollout_low: float = 0.5
    """Least weight that mask keeps, at least 0 (IcePop)."""
    rollout_high: float = 5.0
    """Largest weight that mask keeps, above 0 (IcePop; for sequences MIS)."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_choice(self, "rollout_correction", "off", "truncate", "mask", "bypass")
        check_choice(self, "rollout_level", "token", "sequence")
        check_range(self, "rollout_cap", above=0)
        check_range(self, "rollout_low", 0)
        check_range(self, "rollout_high", above=0)
        if self.rollout_low > self.rollout_high:
            raise ValueError(f"rollout_low must be at most rollout_high, not {self.rollout_low!r}")

    @property
    def bypasses(self) -> bool:
        """Whether the sampler's log-probabilities are taken for those before the update."""
        return self.rollout_correction == "bypass"

    @property
    def weighs(self) -> bool:
        """Whether the policy loss is multiplied by a weight."""
        return self.rollout_correction in ("truncate", "mask")


def correction_reads(options: RolloutCorrection) -> tuple[str, ...]:
    """Columns over tokens that must be there before the update; none where the loss needs none."""
    if options.bypasses:
        return ("rollout_logprobs",)
    if options.rollout_correction == "mask":
        return ("old_logprobs", "rollout_logprobs", "response_mask")
    return ()


def with_old_logprobs(options: RolloutCorrection, batch: Batch) -> Batch:
    """Under ``bypass`` the batch with ``old_logprobs``, else as it is."""
    if not options.bypasses:
        return batch
    return batch.add({"old_logprobs": batch.packed("rollout_logprobs")})


def corrected_mask(options: RolloutCorrection, batch: Batch) -> Tensor:
    """Under ``mask`` the response tokens whose weight is in the range, (B, R) bool.

    They leave ``loss_mask`` before the update and with it every denominator.
    """
    from rlframe.ops.correction import rollout_inside, rollout_log_weight

    mask = batch["response_mask"]
    gap = rollout_log_weight(
        batch["old_logprobs"], batch["rollout_logprobs"], mask, options.rollout_level
    )
    kept: Tensor = mask & rollout_inside(gap, options.rollout_low, options.rollout_high)
    return kept


def correction_weight(options: RolloutCorrection, batch: Mapping[str, Any]) -> Tensor:
    """What the policy loss is multiplied by, no gradient, (b, R); of the tokens that count."""
    from rlframe.ops.correction import rollout_log_weight, rollout_weight

    cap = options.rollout_cap if options.rollout_correction == "truncate" else options.rollout_high
    gap = rollout_log_weight(
        batch["old_logprobs"],
        batch["rollout_logprobs"],
        batch["loss_mask"],
        options.rollout_level,
    )
    return rollout_weight(gap, cap)

"""Importance weights between the trainer's policy and the sampler's, for the same weights.

A sampler computes in other kernels, precision or shards than the trainer, or has weights of some
steps ago; ``w = pi_old / pi_rollout`` corrects for it (2405.17755's truncated form, IcePop's and
MIS's masked ones). Log-probabilities in nats.
"""

from __future__ import annotations

import math

from torch import Tensor

from rlframe.ops.ratios import log_ratio, sequence_log_ratio

__all__ = ["rollout_inside", "rollout_log_weight", "rollout_weight"]


def rollout_log_weight(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, level: str = "token"
) -> Tensor:
    """``log pi_old - log pi_rollout`` without gradient, (b, R) nats, held within +-20.

    All (b, R), ``mask`` bool. ``level`` "token", or "sequence": the sum over the row's True slots
    in each of its slots. Raises ValueError for another level.
    """
    old, rollout = old_logprobs.detach(), rollout_logprobs.detach()
    if level == "token":
        return log_ratio(old, rollout)
    if level == "sequence":
        return sequence_log_ratio(old, rollout, mask, mean=False).expand_as(old)
    raise ValueError(f"unknown level '{level}' of a rollout correction: take token or sequence")


def rollout_weight(log_weight: Tensor, cap: float) -> Tensor:
    """``min(w, cap)`` (TIS): (b, R) -> (b, R)."""
    return log_weight.clamp(max=math.log(cap)).exp()


def rollout_inside(log_weight: Tensor, low: float, high: float) -> Tensor:
    """Where ``low <= w <= high`` (IcePop for tokens, MIS for sequences): (b, R) bool.

    The bounds are in, to within the rounding of the log-probabilities. ``low`` may be 0.
    """
    inside = log_weight <= math.log(high) + _ROUNDING
    return inside if low <= 0 else inside & (log_weight >= math.log(low) - _ROUNDING)


_ROUNDING = 1e-6

"""Probability ratios of two policies on the same tokens, kept inside what float32 can hold."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["log_ratio", "sequence_log_ratio"]

_MOST = 20.0
"""Largest |log ratio|, nats: e^20 is 5e8; beyond it the gradient of a ratio is noise or NaN."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``logprobs - old_logprobs``, held within +-20 nats: (b, R), (b, R) -> (b, R).

    Outside it has no gradient: ``exp`` of more would overflow, and infinity times the 0 of a
    clipped branch is NaN.
    """
    return (logprobs - old_logprobs.detach()).clamp(-_MOST, _MOST)


def sequence_log_ratio(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, mean: bool = True
) -> Tensor:
    """The log ratio of whole responses, mean (or sum) over the True slots: (b, R) -> (b, 1), nats.

    0 for a row without a True slot. Held within +-20 nats like :func:`log_ratio`.
    """
    gap = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    total = gap.sum(1, keepdim=True)
    if mean:
        total = total / mask.sum(1, keepdim=True).clamp(min=1)
    return total.clamp(-_MOST, _MOST)

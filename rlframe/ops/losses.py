"""Policy losses, per token: neither masked nor reduced."""

from __future__ import annotations

import torch
from torch import Tensor

from rlframe.ops.ratios import log_ratio

__all__ = ["clip_fractions", "clipped_surrogate", "surrogate"]


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped loss (1707.06347, eq. 7): all (b, R) -> (b, R).

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logprobs - old_logprobs)``;
    ``clip_high`` defaults to ``clip_low``. ``dual_clip`` c > 1 caps the loss of tokens with A < 0
    at ``-c A`` (1912.09729, eq. 5). Log-probabilities in nats.
    """
    clipped, unclipped = _branches(logprobs, old_logprobs, advantages, clip_low, clip_high)
    loss = torch.maximum(unclipped, clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clip_fractions(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Where :func:`clipped_surrogate` gives no gradient: two (b, R) float tensors of 0 and 1.

    The first marks tokens whose clipped branch counts (verl's ``pg_clipfrac``), the second those
    that the dual clip caps (``pg_clipfrac_lower``; zero where ``dual_clip`` is None).
    """
    clipped, unclipped = _branches(logprobs, old_logprobs, advantages, clip_low, clip_high)
    outside = (clipped > unclipped).to(logprobs.dtype)
    if dual_clip is None:
        return outside, torch.zeros_like(outside)
    capped = (advantages < 0) & (torch.maximum(clipped, unclipped) > -dual_clip * advantages)
    return outside, capped.to(logprobs.dtype)


def surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float | None = None
) -> tuple[Tensor, Tensor]:
    """``-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)`` and where it is clipped.

    ``ratio`` (b, 1) or (b, R), ``advantages`` (b, R) -> two (b, R), the second of 0 and 1.
    """
    high = clip_low if clip_high is None else clip_high
    plain = -ratio * advantages
    held = -ratio.clamp(1 - clip_low, 1 + high) * advantages
    return torch.maximum(plain, held), (held > plain).to(ratio.dtype)


def _branches(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float | None,
) -> tuple[Tensor, Tensor]:
    """The clipped and the unclipped loss of each token."""
    high = clip_low if clip_high is None else clip_high
    ratio = log_ratio(logprobs, old_logprobs).exp()
    return -ratio.clamp(1 - clip_low, 1 + high) * advantages, -ratio * advantages

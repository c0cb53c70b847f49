"""Policy losses with one weight a response, written to each of its tokens: neither masked nor
reduced. Reduced by ``seq-mean-token-mean`` they are the mean over responses.
"""  # noqa: D205

from __future__ import annotations

import torch
from torch import Tensor

from rlframe.ops.losses import surrogate
from rlframe.ops.ratios import sequence_log_ratio

__all__ = ["geometric_clipped", "geometric_outside", "sequence_clipped", "tapered"]


def sequence_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss ``-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)`` and where it is clipped.

    ``s = exp(mean over tokens of log r)`` (GSPO, 2507.18071, eq. 5 and 7): a mean, so that length
    does not widen it. All (b, R), ``mask`` bool -> two (b, R), the second of 0 and 1.
    """
    ratio = sequence_log_ratio(logprobs, old_logprobs, mask).exp()
    return surrogate(ratio, advantages, clip_low, clip_high)


def geometric_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Tensor:
    """``-A exp(mean over tokens of the clipped log r)`` (GMPO, 2507.20673, eq. 4).

    In log space and by the sign of A: log r is held below ``clip_high`` where A > 0 and above
    ``-clip_low`` where A < 0. All (b, R), ``mask`` bool -> (b, R). The response's advantage is the
    mean over its tokens.
    """
    gap = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    held = torch.where(advantages > 0, gap.clamp(max=clip_high), gap.clamp(min=-clip_low))
    ratio = sequence_log_ratio(held, torch.zeros_like(held), mask).exp()
    count = mask.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(mask, advantages, 0.0).sum(1, keepdim=True) / count
    return (-mean * ratio).expand_as(logprobs)


def geometric_outside(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Tensor:
    """Tokens that :func:`geometric_clipped` holds: (b, R) of 0 and 1."""
    gap = (logprobs - old_logprobs).detach()
    outside = torch.where(advantages > 0, gap > clip_high, (gap < -clip_low) & (advantages < 0))
    return outside.to(logprobs.dtype)


def tapered(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, most: float = 1.0
) -> Tensor:
    """``-w A log pi``, w = 1 where A >= 0, else ``sg(min(pi(y) / pi_old(y), most))`` (TOPR).

    2503.14286, eq. 8. The ratio is that of the whole response, the product over its tokens. All
    (b, R), ``mask`` bool -> (b, R).
    """
    ratio = sequence_log_ratio(logprobs, old_logprobs, mask, mean=False).exp().clamp(max=most)
    weight = torch.where(advantages < 0, ratio.detach(), torch.ones_like(ratio))
    return -weight * advantages * logprobs

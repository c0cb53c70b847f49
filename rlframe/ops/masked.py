"""Statistics of the slots where a mask is True; what lies elsewhere, NaN included, is never read.

``total`` sums over the whole batch; on data-parallel ranks pass ``Batch.sum``, which adds them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Total", "local_total", "masked_mean", "masked_var", "masked_whiten"]

Total = Callable[[Tensor, Tensor], Tensor]
"""From values and a bool mask of one shape to the sum where it is True: () float64."""


def local_total(values: Tensor, mask: Tensor) -> Tensor:
    """The sum over one process: () float64."""
    return torch.where(mask, values, torch.zeros_like(values)).double().sum()


def masked_mean(values: Tensor, mask: Tensor, total: Total = local_total) -> Tensor:
    """Mean where ``mask`` (same shape, bool) is True: () float64; 0 without a slot."""
    return total(values, mask) / total(torch.ones_like(values), mask).clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, total: Total = local_total) -> Tensor:
    """Population variance (n) where ``mask`` is True: () float64; 0 without a slot."""
    mean = masked_mean(values, mask, total)
    return masked_mean((values.double() - mean).square(), mask, total)


def masked_whiten(
    values: Tensor,
    mask: Tensor,
    total: Total = local_total,
    *,
    eps: float = 1e-8,
    where: Tensor | None = None,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps)``, statistics where ``mask`` is True; dtype kept.

    Filled in where ``where`` is True (default: where ``mask`` is), 0 elsewhere.
    """
    mean = masked_mean(values, mask, total)
    scaled = (values.double() - mean) * torch.rsqrt(masked_var(values, mask, total) + eps)
    return torch.where(mask if where is None else where, scaled, 0.0).to(values.dtype)

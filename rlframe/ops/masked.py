"""Statistics of the slots where a mask is True; what lies elsewhere, NaN included, is never read.

``total`` sums over the whole batch; on data-parallel ranks pass ``Batch.sum``, which adds them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["Total", "local_total", "masked_mean", "masked_var", "masked_whiten"]

Total = Callable[[Tensor, Tensor], Tensor]
"""From values and a bool mask of one shape to the sum where it is True: () float64."""


def local_total(values: Tensor, mask: Tensor) -> Tensor:
    """The sum over one process: () float64. A bool counts as 0 or 1."""
    if values.dtype == torch.bool:
        return (values & mask).count_nonzero().double()
    chosen = torch.where(mask, values, torch.zeros_like(values))
    if chosen.dtype == torch.float32 and chosen.device.type == "cpu" and not chosen.requires_grad:
        # numpy widens block by block; torch would first write a float64 copy of everything.
        return torch.as_tensor(np.add.reduce(chosen.numpy(), axis=None, dtype=np.float64))
    return chosen.double().sum()


def masked_mean(values: Tensor, mask: Tensor, total: Total = local_total) -> Tensor:
    """Mean where ``mask`` (same shape, bool) is True: () float64; 0 without a slot."""
    return total(values, mask) / total(mask, mask).clamp(min=1)


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

    Filled in where ``where`` is True (default: where ``mask`` is), 0 elsewhere. Statistics in
    float64, of values from which a mean in their own precision is subtracted first.
    """
    filled = mask if where is None else where
    count = total(mask, mask).clamp(min=1)
    mean = total(values, mask) / count
    centred = torch.where(filled, values - mean.to(values.dtype), 0.0)
    rest = total(centred, mask) / count
    spread = total(centred.square(), mask) / count - rest.square()
    scale = torch.rsqrt(spread.clamp(min=0) + eps).to(values.dtype)
    return torch.where(filled, (centred - rest.to(values.dtype)) * scale, 0.0)

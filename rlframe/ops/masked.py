"""Statistics of the slots where a mask is True; what lies elsewhere, NaN included, is never read.

``total`` sums over the whole batch; on data-parallel ranks pass ``Batch.sum``, which adds them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["Total", "local_total", "masked_mean", "masked_var", "masked_whiten"]

_NEGLIGIBLE = 1e-7
"""A shift of whitened values that float32 would not show."""

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
    count = _over_ranks(mask.count_nonzero(), total).clamp(min=1)
    white = torch.where(filled, values, 0.0)
    mean = _over_ranks(_sum(_inside(white, mask, filled)), total) / count
    white.sub_(mean.to(values.dtype)).masked_fill_(~filled, 0.0)
    # What rounding the mean to the values' precision left over.
    counted = _inside(white, mask, filled)
    rest = _over_ranks(_sum(counted), total) / count
    squares = _over_ranks(_sum(counted * counted), total) / count
    if not bool(torch.isfinite(squares)) and values.dtype != torch.float64:
        # Too large to be squared in their own precision.
        wide = masked_whiten(values.double(), mask, total, eps=eps, where=where)
        return wide.to(values.dtype)
    scale = torch.rsqrt((squares - rest.square()).clamp(min=0) + eps)
    if bool(rest.abs() * scale > _NEGLIGIBLE):
        white.sub_(rest.to(values.dtype)).masked_fill_(~filled, 0.0)
    return white.mul_(scale.to(values.dtype))


def _inside(values: Tensor, mask: Tensor, filled: Tensor) -> Tensor:
    """Values that are 0 outside ``filled``, with 0 outside ``mask``."""
    return values if filled is mask else torch.where(mask, values, 0.0)


def _sum(values: Tensor) -> Tensor:
    """The sum of (B, ...) or (n,): () float64, rows in their own precision by pairs."""
    return values.sum(-1).double().sum() if values.dim() > 1 else values.double().sum()


def _over_ranks(local: Tensor, total: Total) -> Tensor:
    """This process's () number, summed as ``total`` sums: () float64."""
    return total(local.double()[None], torch.ones(1, dtype=torch.bool, device=local.device))

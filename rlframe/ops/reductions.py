"""From losses of tokens to one number: the weight of each token.

``N`` counts mask-1 tokens and ``B`` rows with at least one, both over the whole mini-batch, all
micro-batches and ranks; the shares of micro-batches then add up to the same loss for every split.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["loss_weights"]


def loss_weights(
    mask: Tensor, reduction: str, *, tokens: float, rows: float, fixed_length: float = 0
) -> Tensor:
    """Weights such that ``(values * weights).sum()`` is a micro-batch's share of the loss.

    ``mask`` (b, R) bool -> (b, R) float64, 0 outside the mask. ``tokens`` and ``rows`` are N and B
    of the whole mini-batch; ``fixed_length`` is the constant of ``fixed-length``, in tokens.

    - token-mean: 1 / N
    - seq-mean-token-mean: 1 / (B |o_i|)
    - seq-mean-token-sum: 1 / B
    - fixed-length (Dr. GRPO, 2503.20783): 1 / (B * fixed_length)

    A mini-batch without a mask-1 token has weight 0 everywhere. Raises ValueError for another
    reduction, and for ``fixed-length`` without a constant.
    """
    if reduction == "token-mean":
        per_row = torch.full((mask.shape[0], 1), 1 / max(tokens, 1), dtype=torch.float64)
    elif reduction == "seq-mean-token-mean":
        lengths = mask.sum(1, keepdim=True).double()
        per_row = 1 / (lengths.clamp(min=1) * max(rows, 1))
    elif reduction == "seq-mean-token-sum":
        per_row = torch.full((mask.shape[0], 1), 1 / max(rows, 1), dtype=torch.float64)
    elif reduction == "fixed-length":
        if fixed_length <= 0:
            raise ValueError("the reduction 'fixed-length' needs a constant above 0, in tokens")
        weight = 1 / (max(rows, 1) * fixed_length)
        per_row = torch.full((mask.shape[0], 1), weight, dtype=torch.float64)
    else:
        raise ValueError(f"unknown reduction '{reduction}' of per-token values")
    return torch.where(mask, per_row.to(mask.device), 0.0)

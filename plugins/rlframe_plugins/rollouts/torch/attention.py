"""Attention of a prefill and of a decode step, each over the cache.

Keys are stored transposed, so that both products of a decode step run along contiguous memory.
Both classes are called as ``attend(layer, q (heads, dim, T), k, v (kv_heads, dim, T))`` and return
(heads * dim, T).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.cache import KVCache

__all__ = ["DecodeAttention", "PrefillAttention"]


class PrefillAttention:
    """Causal attention of right-padded prompts (N, W); keys of prompt i go to all ``rows[i]``."""

    def __init__(
        self, arch: Arch, cache: KVCache, rows: Sequence[Sequence[int]], width: int
    ) -> None:
        device = cache.keys.device
        self._gqa = arch.heads != arch.kv_heads
        self._cache, self._shape = cache, (len(rows), width)
        source = [i for i, group in enumerate(rows) for _ in group]
        self._source = torch.tensor(source, device=device)
        self._target = torch.tensor([row for group in rows for row in group], device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store and attend."""
        count, width = self._shape
        split = [t.reshape(*t.shape[:2], count, width).permute(2, 0, 1, 3) for t in (q, k, v)]
        self._cache.keys[layer, self._target, :, :, :width] = split[1][self._source]
        q, k, v = (t.transpose(2, 3).contiguous() for t in split)
        self._cache.values[layer, self._target, :, :width] = v[self._source]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self._gqa)
        return out.permute(1, 3, 0, 2).reshape(-1, count * width)


class DecodeAttention:
    """One query a row, for cache rows from ``first`` on, at ``positions`` (B,) below ``width``."""

    def __init__(
        self, arch: Arch, cache: KVCache, positions: Tensor, width: int, first: int = 0
    ) -> None:
        device, count = positions.device, positions.shape[0]
        self._arch, self._cache, self._width = arch, cache, width
        self._span = slice(first, first + count)
        rows = torch.arange(first, first + count, device=device)
        features = torch.arange(arch.kv_heads * arch.head_dim, device=device)[:, None]
        row_size = arch.kv_heads * arch.head_dim * cache.width
        # Flat element (feature, row, position) of the keys; flat vector (row, head, position) of
        # the values.
        self._keys_at = (features * cache.width + (rows * row_size + positions)[None, :]).view(-1)
        heads = torch.arange(arch.kv_heads, device=device)[None, :]
        self._values_at = ((rows[:, None] * arch.kv_heads + heads) * cache.width).add_(
            positions[:, None]
        )
        unseen = torch.arange(width, device=device)[None, :] > positions[:, None]
        mask = torch.zeros_like(unseen, dtype=cache.keys.dtype).masked_fill_(unseen, -torch.inf)
        self._mask = mask.repeat_interleave(arch.kv_heads, 0)[:, None, :]
        self._ragged = 1.0 if count > 1 else 0.0

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store and attend."""
        arch, width, count = self._arch, self._width, q.shape[2]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.view(-1).index_copy_(0, self._keys_at, k.reshape(-1))
        rows = v.permute(2, 0, 1).reshape(-1, arch.head_dim)
        values.view(-1, arch.head_dim).index_copy_(0, self._values_at.view(-1), rows)
        groups = count * arch.kv_heads
        q = q.permute(2, 0, 1).reshape(groups, -1, arch.head_dim)
        keys = keys[self._span].view(groups, arch.head_dim, -1)[:, :, :width]
        values = values[self._span].view(groups, -1, arch.head_dim)[:, :width]
        scale = arch.head_dim**-0.5
        scores = torch.baddbmm(self._mask, q, keys, beta=self._ragged, alpha=scale)
        return torch.bmm(scores.softmax(-1), values).view(count, -1).t()

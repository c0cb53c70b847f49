"""Attention of a prefill and of a decode step over blocks of the cache.

Keys are stored transposed, so that both products of a decode step run along contiguous memory.
Both classes are called as ``attend(layer, q (heads, dim, T), k, v (kv_heads, dim, T))`` and return
(heads * dim, T).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, blocks_for
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.parts import Part, Split

__all__ = ["DecodeAttention", "PrefillAttention"]


class _Writer:
    """Puts T tokens into given places (block * BLOCK_TOKENS + slot) of every layer."""

    def __init__(self, arch: Arch, cache: KVCache, places: Tensor) -> None:
        self._cache, self._dim = cache, arch.head_dim
        device = places.device
        block, slot = places // BLOCK_TOKENS, places % BLOCK_TOKENS
        heads = torch.arange(arch.kv_heads, device=device)
        features = torch.arange(arch.kv_heads * arch.head_dim, device=device)
        size = arch.kv_heads * arch.head_dim
        # Flat element (feature, token) of the keys; flat vector (token, head) of the values.
        keys = (block * size + features[:, None]) * BLOCK_TOKENS + slot
        values = (block[:, None] * arch.kv_heads + heads) * BLOCK_TOKENS + slot[:, None]
        self._keys_at, self._values_at = keys.view(-1), values.view(-1)

    def __call__(self, layer: int, k: Tensor, v: Tensor) -> None:
        keys, values = self._cache.keys(layer), self._cache.values(layer)
        keys.view(-1).index_copy_(0, self._keys_at, k.reshape(-1))
        rows = v.permute(2, 0, 1).reshape(-1, self._dim)
        values.view(-1, self._dim).index_copy_(0, self._values_at, rows)


class PrefillAttention:
    """Causal attention of right-padded texts (N, W) after the tokens that the cache has of them.

    Text i begins at position ``starts[i]``, a multiple of the block size, of its ``tables[i]``.
    """

    def __init__(
        self,
        arch: Arch,
        cache: KVCache,
        lengths: Sequence[int],
        starts: Sequence[int],
        tables: Sequence[Sequence[int]],
        device: torch.device,
    ) -> None:
        self._cache, self._width = cache, max(lengths)
        self._gqa = arch.heads != arch.kv_heads
        places, columns = [], []
        for i, (length, start, table) in enumerate(zip(lengths, starts, tables, strict=True)):
            at = np.arange(start, start + length)
            blocks = np.asarray(table)[at // BLOCK_TOKENS]
            places.append(blocks * BLOCK_TOKENS + at % BLOCK_TOKENS)
            columns.append(np.arange(length) + i * self._width)
        self._write = _Writer(arch, cache, _tensor(np.concatenate(places), device))
        whole = all(length == self._width for length in lengths)
        self._columns = None if whole else _tensor(np.concatenate(columns), device)
        self._before: Tensor | None = None
        if any(starts):
            self._see(starts, tables, device)

    def _see(
        self, starts: Sequence[int], tables: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        """Blocks of what was before, padded with each table's first; and who sees what."""
        most = blocks_for(max(starts))
        before = np.array([list(t[:most]) + [t[0]] * (most - len(t)) for t in tables])
        self._before = _tensor(before, device)
        width, length = self._width, most * BLOCK_TOKENS
        mask = torch.ones((len(starts), 1, width, length + width), dtype=torch.bool, device=device)
        mask[..., length:].tril_()
        known = torch.tensor(starts, device=device)[:, None, None, None]
        mask[..., :length] = torch.arange(length, device=device) < known
        self._mask = mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store and attend."""
        real = (k, v) if self._columns is None else (k[..., self._columns], v[..., self._columns])
        self._write(layer, *real)
        count = q.shape[2] // self._width
        q, k, v = (
            t.reshape(*t.shape[:2], count, self._width).permute(2, 0, 3, 1).contiguous()
            for t in (q, k, v)
        )
        if self._before is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self._gqa)
        else:
            earlier = self._cache.keys(layer)[self._before].permute(0, 2, 1, 4, 3).flatten(2, 3)
            k = torch.cat([earlier, k], 2)
            earlier = self._cache.values(layer)[self._before].permute(0, 2, 1, 3, 4).flatten(2, 3)
            v = torch.cat([earlier, v], 2)
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=self._mask, enable_gqa=self._gqa
            )
        return out.permute(1, 3, 0, 2).reshape(-1, count * self._width)


class DecodeAttention:
    """One query a row, at ``positions`` (B,) of the blocks in ``tables`` (B, M).

    Blocks are read where they lie; a block that rows share is read once. Each block's weighted
    values are summed with those of the row's other blocks. ``exact`` takes them in the order of the
    table, for results that do not depend on where they lie.
    """

    def __init__(
        self,
        arch: Arch,
        cache: KVCache,
        positions: NDArray[np.int64],
        tables: NDArray[np.int64],
        exact: bool,
        device: torch.device,
    ) -> None:
        self._arch, self._cache, self._count = arch, cache, len(positions)
        blocks = tables[np.arange(len(tables)), positions // BLOCK_TOKENS]
        places = blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS
        self._write = _Writer(arch, cache, _tensor(places, device))
        split = Split(positions, tables, exact)
        self._parts = [_Placed(part, arch, cache.keys(0).dtype, device) for part in split.parts]
        self._pairs = _tensor(split.pairs, device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store and attend."""
        self._write(layer, k, v)
        count, heads, dim = self._count, self._arch.heads, self._arch.head_dim
        q = q.permute(2, 0, 1).contiguous()
        keys, values = self._cache.keys(layer), self._cache.values(layer)
        scores = [part.scores(q, keys) for part in self._parts]
        peaks = [s.amax(-1) for s in scores]
        top = (peaks[0] if len(peaks) == 1 else torch.cat(peaks))[self._pairs].amax(1)
        # One row more than there are takes what belongs to no row.
        total = top.new_zeros((count + 1, heads))
        out = top.new_zeros((count + 1, heads, dim))
        for part, score in zip(self._parts, scores, strict=True):
            part.add(score, top, values, total, out)
        out = out[:count].div_(total[:count, :, None])
        return out.view(count, -1).to(q.dtype).t()


class _Placed:
    """A :class:`Part` of n blocks with s users each, as tensors."""

    def __init__(self, part: Part, arch: Arch, dtype: torch.dtype, device: torch.device) -> None:
        self._n, self._users = part.rows.shape
        self._kv, self._groups = arch.kv_heads, arch.heads // arch.kv_heads
        self._heads, self._dim = arch.heads, arch.head_dim
        where = part.blocks
        self._where = where if isinstance(where, slice) else _tensor(where, device)
        rows = part.rows.reshape(-1)
        self._rows = _tensor(rows, device)
        self._asks = _tensor(np.where(rows == part.nobody, 0, rows), device)
        mask = torch.zeros((self._n, BLOCK_TOKENS), dtype=dtype, device=device)
        if part.unseen is not None:
            mask.masked_fill_(_tensor(part.unseen, device), -torch.inf)
        self._mask = mask.repeat_interleave(arch.kv_heads, 0)[:, None]
        self._ragged = 0.0 if part.unseen is None else 1.0

    def scores(self, q: Tensor, keys: Tensor) -> Tensor:
        """(n * s, heads, BLOCK_TOKENS) in float32, block by block."""
        asked = q.index_select(0, self._asks)
        asked = asked.view(self._n, self._users, self._kv, self._groups, self._dim)
        queries = asked.transpose(1, 2).reshape(self._n * self._kv, -1, self._dim)
        keys = keys[self._where].view(self._n * self._kv, self._dim, BLOCK_TOKENS)
        scale = self._dim**-0.5
        found = torch.baddbmm(self._mask, queries, keys, beta=self._ragged, alpha=scale)
        found = found.view(self._n, self._kv, self._users, self._groups, BLOCK_TOKENS)
        return found.transpose(1, 2).reshape(-1, self._heads, BLOCK_TOKENS).float()

    def add(self, scores: Tensor, top: Tensor, values: Tensor, total: Tensor, out: Tensor) -> None:
        """Add weights (rows, heads) and weighted values (rows, heads, dim) to those of the rows."""
        weights = scores.sub_(top.index_select(0, self._asks)[:, :, None]).exp_()
        total.index_add_(0, self._rows, weights.sum(-1))
        shape = (self._n, self._users, self._kv, self._groups, BLOCK_TOKENS)
        weights = weights.view(shape).transpose(1, 2).to(values.dtype)
        weights = weights.reshape(self._n * self._kv, -1, BLOCK_TOKENS)
        values = values[self._where].view(self._n * self._kv, BLOCK_TOKENS, self._dim)
        found = torch.bmm(weights, values).view(self._n, self._kv, self._users, -1)
        found = found.transpose(1, 2).reshape(-1, self._heads, self._dim)
        out.index_add_(0, self._rows, found.to(out.dtype))


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)

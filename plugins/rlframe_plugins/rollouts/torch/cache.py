"""Static key-value cache: one row a running sequence, rows kept dense from 0."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["KVCache"]

_STEP = 64


class KVCache:
    """Keys (layers, rows, kv_heads, head_dim, width), values (..., width, head_dim); both grow.

    Slots past a sequence's length hold zeros or stale finite numbers, and are masked.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        self._shape = (layers, kv_heads, head_dim)
        self._rows = self._width = 0
        self.keys = self.values = torch.empty(0)

    @property
    def rows(self) -> int:
        """Sequences that fit."""
        return self._rows

    @property
    def width(self) -> int:
        """Tokens a row."""
        return self._width

    def reserve(self, rows: int, width: int, used: tuple[int, int], like: Tensor) -> None:
        """Make room for ``rows`` of ``width`` tokens, keeping the first ``used`` (rows, width).

        An empty cache more than four times too large is cut. ``like`` gives dtype and device.
        """
        width = -(-width // _STEP) * _STEP
        wasteful = used[0] == 0 and self._rows * self._width > 4 * rows * width
        if rows <= self._rows and width <= self._width and not wasteful:
            return
        if not wasteful:
            rows, width = max(rows, self._rows), max(width, self._width)
        layers, heads, dim = self._shape
        keys = like.new_zeros((layers, rows, heads, dim, width))
        values = like.new_zeros((layers, rows, heads, width, dim))
        if used[0]:
            keep, upto = slice(used[0]), slice(used[1])
            keys[:, keep, :, :, upto] = self.keys[:, keep, :, :, upto]
            values[:, keep, :, upto] = self.values[:, keep, :, upto]
        self.keys, self.values, self._rows, self._width = keys, values, rows, width

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of a row over another row."""
        self.keys[:, target, :, :, :length] = self.keys[:, source, :, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def release(self) -> None:
        """Give the memory back."""
        self.keys = self.values = torch.empty(0)
        self._rows = self._width = 0

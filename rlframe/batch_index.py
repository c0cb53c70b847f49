"""Which row of which block each row of a batch is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlframe.interfaces.transfer import Handle

__all__ = ["ColumnIndex", "RowIndex"]


@dataclass(frozen=True)
class RowIndex:
    """Row i of the batch is row ``row[i]`` of block ``block[i]``; both (B,) int64."""

    block: NDArray[np.int64]
    row: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> tuple[RowIndex, NDArray[np.int64]]:
        """The given rows, their blocks numbered anew, and the old numbers of the blocks in use."""
        used, block = np.unique(self.block[rows], return_inverse=True)
        return RowIndex(block.astype(np.int64), self.row[rows]), used

    @classmethod
    def join(cls, parts: Sequence[tuple[RowIndex, int]]) -> RowIndex:
        """Several indices one after the other, each with its number of blocks."""
        shifts = np.cumsum([0, *(blocks for _, blocks in parts)])
        shifted = [p.block + s for (p, _), s in zip(parts, shifts, strict=False)]
        return cls(np.concatenate(shifted), np.concatenate([p.row for p, _ in parts]))


@dataclass(frozen=True)
class ColumnIndex:
    """The blocks of one column and where its rows are in them; columns made together share it."""

    handles: tuple[Handle, ...]
    rows: RowIndex

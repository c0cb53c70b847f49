"""Which row of which block each row of a batch is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlframe.interfaces.transfer import Handle

__all__ = ["ColumnIndex", "RowIndex", "narrowed"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowIndex:
    """Row i of the batch is row ``row[i]`` of block ``block[i]``; both (B,) int64."""

    block: Ints
    row: Ints

    def take(self, rows: Ints) -> tuple[RowIndex, Ints]:
        """The given rows, their blocks numbered anew, and the old numbers of the blocks in use."""
        used, block = np.unique(self.block[rows], return_inverse=True)
        return RowIndex(block.astype(np.int64), self.row[rows]), used

    def by_block(self) -> list[tuple[int, Ints]]:
        """Per block in use its number and the batch rows that lie in it, ascending."""
        order = np.argsort(self.block, kind="stable")
        blocks, counts = np.unique(self.block, return_counts=True)
        parts = np.split(order, np.cumsum(counts)[:-1])
        return [(int(b), part) for b, part in zip(blocks, parts, strict=False)]

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


def narrowed(index: Mapping[str, ColumnIndex]) -> dict[str, ColumnIndex]:
    """The same index over views of just the block rows that it points to."""
    memo: dict[int, tuple[RowIndex, list[tuple[int, Ints]]]] = {}
    out = {}
    for name, entry in index.items():
        if id(entry.rows) not in memo:
            memo[id(entry.rows)] = _renumbered(entry.rows)
        rows, kept = memo[id(entry.rows)]
        handles = (_view(entry.handles[block], wanted) for block, wanted in kept)
        out[name] = ColumnIndex(tuple(handles), rows)
    return out


def _renumbered(rows: RowIndex) -> tuple[RowIndex, list[tuple[int, Ints]]]:
    """Rows numbered among those in use of their block, and per block what those are."""
    row, kept = np.zeros(len(rows.row), np.int64), []
    block = np.zeros(len(rows.row), np.int64)
    for number, (old, where) in enumerate(rows.by_block()):
        wanted, row[where] = np.unique(rows.row[where], return_inverse=True)
        block[where] = number
        kept.append((old, wanted))
    return RowIndex(block, row), kept


def _view(handle: Handle, rows: Ints) -> Handle:
    return handle if len(rows) == handle.rows else handle.view(rows)

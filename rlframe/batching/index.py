"""Which row of which block each row of a batch is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.columns import Column
from rlframe.errors import BatchError
from rlframe.interfaces.transfer import Handle

__all__ = ["ColumnIndex", "RowIndex", "carried_handle", "join_columns", "narrowed"]

Ints = NDArray[np.int64]

_NUMBERS = itertools.count()


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


@dataclass(frozen=True)
class ColumnIndex:
    """The blocks of one column and where its rows are in them; columns made together share it."""

    handles: tuple[Handle, ...]
    rows: RowIndex

    def pieces(self) -> list[tuple[Handle, Ints, Ints]]:
        """Each block in use with its rows and where those are in the batch."""
        return [
            (self.handles[block], self.rows.row[where], where)
            for block, where in self.rows.by_block()
        ]


def join_columns(parts: Sequence[Mapping[str, ColumnIndex]]) -> dict[str, ColumnIndex]:
    """Several indices with the same columns one after the other.

    A block that several parts point to is one block of the result. Columns that shared their rows
    in every part share them in the result.
    """
    joined: dict[Any, RowIndex] = {}
    out = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        numbers: dict[int, int] = {}
        renumbered = [
            tuple(numbers.setdefault(id(handle), len(numbers)) for handle in column.handles)
            for column in columns
        ]
        key = tuple((id(c.rows), new) for c, new in zip(columns, renumbered, strict=True))
        if key not in joined:
            pairs = zip(columns, renumbered, strict=True)
            blocks = [np.array(new, np.int64)[c.rows.block] for c, new in pairs]
            rows = [c.rows.row for c in columns]
            joined[key] = RowIndex(np.concatenate(blocks), np.concatenate(rows))
        by_id = {id(handle): handle for column in columns for handle in column.handles}
        out[name] = ColumnIndex(tuple(by_id[i] for i in numbers), joined[key])
    return out


def carried_handle(column: Column, values: NDArray[Any], size: int, lengths: Ints | None) -> Handle:
    """A block of ``values``, one a row, that lies nowhere but in its handle.

    ``lengths`` (size,) are those of a ragged column. Raises BatchError for another number of rows,
    shape or dtype, and for a ragged column without lengths.
    """
    name = column.name
    if column.axis and lengths is None:
        raise BatchError(f"column '{name}' is {column.shape}: the batch has no such rows yet")
    if len(values) != size:
        raise BatchError(f"column '{name}' has {len(values)} rows, the batch {size}")
    if values.dtype != np.dtype(column.dtype):
        raise BatchError(f"column '{name}' is {column.dtype}; its data is {values.dtype}")
    if values.ndim != (1 if column.axis else len(column.shape)):
        raise BatchError(f"column '{name}' is {column.shape}; its data has shape {values.shape}")
    key = f"carried/{next(_NUMBERS)}"
    return Handle(key, name, size, lengths, values, int(values.nbytes), "controller")


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

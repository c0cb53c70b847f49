"""A batch is an index: per column, which rows of which blocks; the blocks lie where they were made.

Selecting, repeating, joining and shuffling edit the index. Reading a column pulls its rows and pads
them to the longest one selected. Columns are added by stages; none is renamed or overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.batching.columns import COLUMNS, Schema
from rlframe.batching.index import (
    ColumnIndex,
    RowIndex,
    carried_handle,
    join_columns,
    narrowed,
)
from rlframe.batching.pack_columns import column_of, empty_column, pack_columns
from rlframe.batching.packed import Packed
from rlframe.batching.tensordicts import columns_of, tensordict_of
from rlframe.errors import BatchError, unknown_name
from rlframe.interfaces.transfer import Handle, LocalTransfer, TransferEngine
from rlframe.ops.masked import local_total

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Batch", "Columns"]

Columns = Mapping[str, Any]
"""Column name to (B,) or padded (B, W) tensor or array, a list of rows, or a :class:`Packed`."""


class Batch:
    """Rows of named columns.

    ``batch["rewards"]`` reads a column: (B,) or padded (B, R) on the CPU, or a list for opaque
    ones; ``batch["scalars", name]`` reads a number of the step. ``reduce`` sums a tensor over the
    data-parallel ranks; on the controller and on one rank it is the identity.

    Raises ``BatchError`` for unknown, missing or repeated columns and wrong shapes or dtypes.
    """

    def __init__(
        self,
        index: Mapping[str, ColumnIndex],
        size: int,
        *,
        schema: Schema = COLUMNS,
        transfer: TransferEngine | None = None,
        scalars: Mapping[str, float] | None = None,
        reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._index = dict(index)
        self._size = size
        self.schema = schema
        self.transfer = transfer or LocalTransfer()
        self.scalars: dict[str, float] = dict(scalars or {})
        self.reduce: Callable[[Tensor], Tensor] = reduce or _alone

    # --- making -----------------------------------------------------------------------------

    @classmethod
    def from_columns(
        cls, columns: Columns, *, schema: Schema = COLUMNS, transfer: TransferEngine | None = None
    ) -> Batch:
        """A new batch from columns of equally many rows."""
        if not columns:
            raise BatchError("a batch needs at least one column")
        first = next(iter(columns.values()))
        return cls({}, len(first), schema=schema, transfer=transfer).add(columns)

    def add(self, columns: Columns) -> Batch:
        """This batch with further columns; padded (B, R) tensors are cut to the rows' lengths."""
        self._refuse_known(columns)
        packed = pack_columns(columns, self.schema, self._size, self._axis_lengths)
        return self._with_blocks(self.transfer.put(packed))

    def carry(self, columns: Mapping[str, NDArray[Any]]) -> Batch:
        """This batch with further columns whose values, one a row, travel with their handles.

        In a ragged column the value stands at each token of its row; it is repeated on reading.
        """
        self._refuse_known(columns)
        blocks = {}
        for name, values in columns.items():
            column = column_of(self.schema, name)
            lengths = self._axis_lengths(column.axis) if column.axis else None
            blocks[name] = carried_handle(column, values, self._size, lengths)
        return self._with_blocks(blocks)

    def add_handles(
        self, blocks: Sequence[tuple[Mapping[str, Handle], NDArray[np.int64]]]
    ) -> Batch:
        """Columns that workers made: per worker its handles and the batch rows that they hold."""
        order = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in blocks)])
        if not np.array_equal(np.sort(order), np.arange(self._size)):
            raise BatchError(f"workers returned {len(order)} rows for a batch of {self._size}")
        if not blocks:
            return self
        self._refuse_known(blocks[0][0])
        block = np.empty(self._size, np.int64)
        row = np.empty(self._size, np.int64)
        for number, (_, rows) in enumerate(blocks):
            block[rows], row[rows] = number, np.arange(len(rows))
        where, index = RowIndex(block, row), dict(self._index)
        for name in blocks[0][0]:
            column_of(self.schema, name)
            for number, (handles, rows) in enumerate(blocks):
                if set(handles) != set(blocks[0][0]) or handles[name].rows != len(rows):
                    raise BatchError(f"worker {number} returned other columns or rows of '{name}'")
            index[name] = ColumnIndex(tuple(handles[name] for handles, _ in blocks), where)
        return self._with(index, self._size)

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of several batches with the same columns, in order; shared blocks stay one."""
        if not batches:
            raise BatchError("no batches to join")
        first = batches[0]
        for other in batches[1:]:
            if set(other.columns) != set(first.columns):
                odd = sorted(set(other.columns) ^ set(first.columns))
                raise BatchError(f"batches to join differ in columns: {', '.join(odd)}")
        index = join_columns([b._index for b in batches])
        return first._with(index, sum(len(b) for b in batches))

    # --- selecting --------------------------------------------------------------------------

    def take(self, rows: Sequence[int] | NDArray[np.int64] | Tensor) -> Batch:
        """The given rows, in the given order; a row may be taken several times."""
        wanted = np.asarray(rows)
        if wanted.ndim != 1 or (len(wanted) and wanted.dtype.kind not in "iu"):
            raise BatchError(f"rows are (n,) whole numbers, not {wanted.dtype} {wanted.shape}")
        wanted = wanted.astype(np.int64)
        outside = wanted[(wanted < -self._size) | (wanted >= self._size)]
        if len(outside):
            raise BatchError(f"row {int(outside[0])} of a batch of {self._size}")
        memo: dict[int, tuple[RowIndex, NDArray[np.int64]]] = {}
        index = {}
        for name, entry in self._index.items():
            if id(entry.rows) not in memo:
                memo[id(entry.rows)] = entry.rows.take(wanted)
            taken, used = memo[id(entry.rows)]
            index[name] = ColumnIndex(tuple(entry.handles[b] for b in used), taken)
        return self._with(index, len(wanted))

    def keep(self, mask: Tensor | NDArray[np.bool_] | Sequence[bool]) -> Batch:
        """The rows where ``mask`` (B,) is True."""
        chosen = np.asarray(mask, bool)
        if chosen.shape != (self._size,):
            raise BatchError(f"a mask of shape {chosen.shape} for a batch of {self._size}")
        return self.take(np.flatnonzero(chosen))

    def repeat(self, times: int) -> Batch:
        """Every row ``times`` times, copies side by side."""
        return self.take(np.repeat(np.arange(self._size), times))

    def shuffle(self, seed: int) -> Batch:
        """The rows in a seeded random order."""
        return self.take(np.random.default_rng(seed).permutation(self._size))

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Consecutive parts of the given sizes, which sum to B."""
        if sum(sizes) != self._size:
            raise BatchError(f"parts of {list(sizes)} rows do not make up {self._size}")
        ends = np.cumsum(sizes)
        return [self.take(np.arange(e - n, e)) for e, n in zip(ends, sizes, strict=True)]

    def via(self, transfer: TransferEngine) -> Batch:
        """The same rows, read through another engine that reaches their blocks."""
        return self._with(self._index, self._size, transfer)

    def select(self, names: Sequence[str]) -> Batch:
        """The same rows with the given columns only."""
        return self._with({name: self._entry(name) for name in names}, self._size)

    def narrow(self) -> Batch:
        """The same rows, with the lengths and values of just those rows in the handles."""
        return self._with(narrowed(self._index), self._size)

    # --- reading ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that exist."""
        return tuple(self._index)

    def __getitem__(self, name: str | tuple[str, str]) -> Any:
        if isinstance(name, tuple):
            return torch.full((self._size,), self.scalar(name[1]))
        packed = self.packed(name)
        if self.schema[name].dtype == "object":
            return list(packed.values)
        return torch.from_numpy(packed.padded(left=self.schema[name].axis == "P"))

    def scalar(self, name: str) -> float:
        """A number of this step that an algorithm or scheduler set."""
        if name not in self.scalars:
            raise BatchError(unknown_name("scalar", name, self.scalars))
        return self.scalars[name]

    def packed(self, name: str) -> Packed:
        """A column without padding."""
        pieces = self._entry(name).pieces()
        if not pieces:
            return empty_column(column_of(self.schema, name))
        parts = self.transfer.fetch([(handle, rows) for handle, rows, _ in pieces])
        order = np.concatenate([where for _, _, where in pieces])
        in_turn = np.array_equal(order, np.arange(len(order)))
        return Packed.concat(parts, None if in_turn else np.argsort(order))

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Tokens in each row of a ragged column, (B,); read from the handles, no data moves."""
        out = np.zeros(self._size, np.int64)
        for handle, rows, where in self._entry(name).pieces():
            if handle.lengths is None:
                raise BatchError(f"column '{name}' has no lengths: its rows are all alike")
            out[where] = handle.lengths[rows]
        return out

    def handles(self) -> list[Handle]:
        """Every block that this batch points to."""
        return [handle for entry in self._index.values() for handle in entry.handles]

    def pieces(self) -> Iterator[tuple[Handle, NDArray[np.int64]]]:
        """Every block that this batch points to, and which rows of it."""
        for entry in self._index.values():
            yield from ((handle, rows) for handle, rows, _ in entry.pieces())

    def sum(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum over the whole batch, all data-parallel ranks included: () float64."""
        return self.reduce(values.double().sum() if mask is None else local_total(values, mask))

    def to_tensordict(self, names: Sequence[str] | None = None) -> TensorDict:
        """Padded tensors of numeric columns, with lengths and scalars.

        Adds ``prompt_lengths`` and ``response_lengths`` (B,) int64 and ``scalars`` (B,) each.
        """
        return tensordict_of(self, self.columns if names is None else names)

    @classmethod
    def from_tensordict(cls, data: TensorDict, *, schema: Schema = COLUMNS) -> Batch:
        """The reverse of :meth:`to_tensordict`."""
        columns, scalars = columns_of(data, schema)
        batch = cls.from_columns(columns, schema=schema)
        batch.scalars = dict(scalars)
        return batch

    # --- inside -----------------------------------------------------------------------------

    def _with_blocks(self, blocks: Mapping[str, Handle]) -> Batch:
        """Further columns of one block each, whose rows are the batch's."""
        rows = RowIndex(np.zeros(self._size, np.int64), np.arange(self._size, dtype=np.int64))
        index = {name: ColumnIndex((handle,), rows) for name, handle in blocks.items()}
        return self._with({**self._index, **index}, self._size)

    def _with(
        self, index: Mapping[str, ColumnIndex], size: int, transfer: TransferEngine | None = None
    ) -> Batch:
        through = transfer or self.transfer
        out = Batch(index, size, schema=self.schema, transfer=through, scalars=self.scalars)
        out.reduce = self.reduce
        return out

    def _entry(self, name: str) -> ColumnIndex:
        if name not in self._index:
            raise BatchError(unknown_name("column", name, self._index))
        return self._index[name]

    def _refuse_known(self, names: Iterable[str]) -> None:
        known = [name for name in names if name in self._index]
        if known:
            raise BatchError(f"column '{known[0]}' exists already; a stage only adds columns")

    def _axis_lengths(self, axis: str) -> NDArray[np.int64] | None:
        """Row lengths that the columns of an axis have, None where there is no such column."""
        same = [name for name in self._index if self.schema[name].axis == axis]
        return self.lengths(same[0]) if same else None


def _alone(tensor: Tensor) -> Tensor:
    """The sum over one rank."""
    return tensor

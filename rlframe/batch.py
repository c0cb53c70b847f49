"""A batch is an index: per column, which rows of which blocks; the blocks lie where they were made.

Selecting, repeating, joining and shuffling edit the index. Reading a column pulls its rows and pads
them to the longest one selected. Columns are added by stages; none is renamed or overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from rlframe.columns import COLUMNS, Column, Schema
from rlframe.errors import BatchError, unknown_name
from rlframe.interfaces.transfer import Handle, LocalTransfer, TransferEngine
from rlframe.packed import Packed

__all__ = ["Batch", "Columns"]

Columns = Mapping[str, Any]
"""Column name to (B,) or padded (B, W) tensor or array, a list of rows, or a :class:`Packed`."""

_LENGTH_OF = {"P": "prompt_ids", "R": "response_ids"}


@dataclass(frozen=True)
class _Rows:
    """Row i of the batch is row ``row[i]`` of block ``block[i]``; both (B,) int64."""

    block: NDArray[np.int64]
    row: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        return _Rows(self.block[rows], self.row[rows])


@dataclass(frozen=True)
class _Index:
    handles: tuple[Handle, ...]
    rows: _Rows


class Batch:
    """Rows of named columns.

    ``batch["rewards"]`` reads a column: (B,) or padded (B, R) on the CPU, or a list for opaque
    ones; ``batch["scalars", name]`` reads a number of the step. ``reduce`` sums a tensor over the
    data-parallel ranks; on the controller and on one rank it is the identity.

    Raises ``BatchError`` for unknown, missing or repeated columns and wrong shapes or dtypes.
    """

    def __init__(
        self,
        index: Mapping[str, _Index],
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
        self.reduce: Callable[[Tensor], Tensor] = reduce or (lambda tensor: tensor)

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
        for name in columns:
            if name in self._index:
                raise BatchError(f"column '{name}' exists already; a stage only adds columns")
        blocks = self.transfer.put(self._pack(columns))
        rows = _Rows(np.zeros(self._size, np.int64), np.arange(self._size, dtype=np.int64))
        index = {name: _Index((handle,), rows) for name, handle in blocks.items()}
        return self._with({**self._index, **index}, self._size)

    def add_handles(
        self, blocks: Sequence[tuple[Mapping[str, Handle], NDArray[np.int64]]]
    ) -> Batch:
        """Columns that workers made: per worker its handles and the batch rows that they hold."""
        order = np.concatenate([rows for _, rows in blocks])
        if len(order) != self._size or len(np.unique(order)) != self._size:
            raise BatchError(f"workers returned {len(order)} rows for a batch of {self._size}")
        block = np.empty(self._size, np.int64)
        row = np.empty(self._size, np.int64)
        for number, (_, rows) in enumerate(blocks):
            block[rows], row[rows] = number, np.arange(len(rows))
        where, index = _Rows(block, row), dict(self._index)
        for name in blocks[0][0]:
            if name in index:
                raise BatchError(f"column '{name}' exists already; a stage only adds columns")
            index[name] = _Index(tuple(handles[name] for handles, _ in blocks), where)
        return self._with(index, self._size)

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of several batches with the same columns, in order."""
        first = batches[0]
        index: dict[str, _Index] = {}
        for other in batches[1:]:
            if set(other.columns) != set(first.columns):
                odd = sorted(set(other.columns) ^ set(first.columns))
                raise BatchError(f"batches to join differ in columns: {', '.join(odd)}")
        joined: dict[tuple[tuple[int, int], ...], _Rows] = {}
        for name in first.columns:
            parts = [b._index[name] for b in batches]
            key = tuple((id(p.rows), len(p.handles)) for p in parts)
            if key not in joined:
                shifts = np.cumsum([0, *(len(p.handles) for p in parts)])
                joined[key] = _Rows(
                    np.concatenate([p.rows.block + s for p, s in zip(parts, shifts, strict=False)]),
                    np.concatenate([p.rows.row for p in parts]),
                )
            index[name] = _Index(tuple(h for p in parts for h in p.handles), joined[key])
        return first._with(index, sum(len(b) for b in batches))

    # --- selecting --------------------------------------------------------------------------

    def take(self, rows: Sequence[int] | NDArray[np.int64] | Tensor) -> Batch:
        """The given rows, in the given order; a row may be taken several times."""
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and (wanted.min() < -self._size or wanted.max() >= self._size):
            raise BatchError(f"row {int(wanted.max())} of a batch of {self._size}")
        memo: dict[int, _Rows] = {}
        index = {}
        for name, entry in self._index.items():
            if id(entry.rows) not in memo:
                memo[id(entry.rows)] = entry.rows.take(wanted)
            index[name] = _Index(entry.handles, memo[id(entry.rows)])
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

    def select(self, names: Sequence[str]) -> Batch:
        """The same rows with the given columns only."""
        return self._with({name: self._entry(name) for name in names}, self._size)

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
        entry = self._entry(name)
        blocks = np.unique(entry.rows.block)
        where = [np.flatnonzero(entry.rows.block == b) for b in blocks]
        pieces = [(entry.handles[b], entry.rows.row[w]) for b, w in zip(blocks, where, strict=True)]
        if not pieces:
            return self._empty(name)
        packed = Packed.concat(self.transfer.get(pieces))
        order = np.concatenate(where)
        if np.array_equal(order, np.arange(len(order))):
            return packed
        return packed.take(np.argsort(order))

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Tokens in each row of a ragged column, (B,); read from the handles, no data moves."""
        entry = self._entry(name)
        out = np.zeros(self._size, np.int64)
        for b in np.unique(entry.rows.block):
            lengths = entry.handles[b].lengths
            if lengths is None:
                raise BatchError(f"column '{name}' has no lengths: its rows are all alike")
            chosen = entry.rows.block == b
            out[chosen] = lengths[entry.rows.row[chosen]]
        return out

    def handles(self) -> list[Handle]:
        """Every block that this batch points to."""
        return [handle for entry in self._index.values() for handle in entry.handles]

    def sum(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum over the whole batch, all data-parallel ranks included: () float64."""
        chosen = values if mask is None else torch.where(mask, values, torch.zeros_like(values))
        return self.reduce(chosen.double().sum())

    def to_tensordict(self, names: Sequence[str] | None = None) -> TensorDict:
        """Padded tensors of numeric columns, with lengths and scalars.

        Adds ``prompt_lengths`` and ``response_lengths`` (B,) int64 and ``scalars`` (B,) each.
        """
        chosen = [n for n in names or self.columns if self.schema[n].dtype != "object"]
        out: dict[str, Any] = {name: self[name] for name in chosen}
        for axis, source in _LENGTH_OF.items():
            if source in self._index:
                key = "prompt_lengths" if axis == "P" else "response_lengths"
                out[key] = torch.from_numpy(self.lengths(source))
        if self.scalars:
            out["scalars"] = {n: torch.full((self._size,), v) for n, v in self.scalars.items()}
        return TensorDict(out, batch_size=[self._size])

    @classmethod
    def from_tensordict(cls, data: TensorDict, *, schema: Schema = COLUMNS) -> Batch:
        """The reverse of :meth:`to_tensordict`."""
        known = {"P": data.get("prompt_lengths"), "R": data.get("response_lengths")}
        columns: dict[str, Any] = {}
        for name in data.keys():  # noqa: SIM118 - a TensorDict iterates over rows
            if name in ("prompt_lengths", "response_lengths", "scalars"):
                continue
            column = _column(schema, name)
            lengths = known.get(column.axis or "")
            if lengths is None:
                columns[name] = data[name]
            else:
                columns[name] = Packed.from_padded(
                    data[name].numpy(), lengths.numpy(), left=column.axis == "P"
                )
        batch = cls.from_columns(columns, schema=schema)
        scalars = data.get("scalars")
        if scalars is not None and len(batch):
            batch.scalars = {n: float(v[0]) for n, v in scalars.items()}
        return batch

    # --- inside -----------------------------------------------------------------------------

    def _with(self, index: Mapping[str, _Index], size: int) -> Batch:
        return Batch(
            index,
            size,
            schema=self.schema,
            transfer=self.transfer,
            scalars=self.scalars,
            reduce=self.reduce,
        )

    def _entry(self, name: str) -> _Index:
        if name not in self._index:
            raise BatchError(unknown_name("column", name, self._index))
        return self._index[name]

    def _empty(self, name: str) -> Packed:
        column = self.schema[name]
        values = np.zeros((0,) if column.axis or column.shape == "B" else (0, 0), column.dtype)
        return Packed(values, np.zeros(0, np.int64) if column.axis else None)

    def _pack(self, columns: Columns) -> dict[str, Packed]:
        out: dict[str, Packed] = {}
        for name, data in columns.items():
            column = _column(self.schema, name)
            packed = _packed(column, data, lambda axis: self._axis_lengths(axis, out))  # noqa: B023
            if len(packed) != self._size:
                raise BatchError(f"column '{name}' has {len(packed)} rows, the batch {self._size}")
            out[name] = packed
        return out

    def _axis_lengths(self, axis: str, fresh: Mapping[str, Packed]) -> NDArray[np.int64] | None:
        source = _LENGTH_OF.get(axis)
        if source is None:
            return None
        if source in fresh:
            return fresh[source].lengths
        return self.lengths(source) if source in self._index else None


def _column(schema: Schema, name: str) -> Column:
    if name not in schema:
        raise BatchError(unknown_name("column", name, schema))
    return schema[name]


def _packed(
    column: Column, data: Any, lengths_of: Callable[[str], NDArray[np.int64] | None]
) -> Packed:
    """Check one column's data against its declaration and pack it."""
    if isinstance(data, Packed):
        packed = data
    elif column.dtype == "object":
        values = np.empty(len(data), object)
        values[:] = list(data)
        packed = Packed(values)
    elif column.axis and isinstance(data, list | tuple):
        packed = Packed.from_rows(data, column.dtype)
    else:
        packed = _from_dense(column, data, lengths_of)
    if (packed.lengths is not None) != (column.axis is not None):
        raise BatchError(f"column '{column.name}' is {column.shape}; its data is of another shape")
    if packed.values.dtype != np.dtype(column.dtype):
        raise BatchError(
            f"column '{column.name}' is {column.dtype}; its data is {packed.values.dtype}"
        )
    expected = lengths_of(column.axis) if column.axis else None
    if expected is not None and not np.array_equal(expected, packed.lengths):
        raise BatchError(f"rows of column '{column.name}' differ in length from the batch's")
    return packed


def _from_dense(
    column: Column, data: Any, lengths_of: Callable[[str], NDArray[np.int64] | None]
) -> Packed:
    dense = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    if dense.dtype != np.dtype(column.dtype) and np.can_cast(
        dense.dtype, column.dtype, "same_kind"
    ):
        dense = dense.astype(column.dtype)
    if dense.ndim != len(column.shape):
        raise BatchError(
            f"column '{column.name}' is {column.shape}; its data has shape {dense.shape}"
        )
    if column.axis is None:
        return Packed(dense)
    lengths = lengths_of(column.axis)
    if lengths is None:
        lengths = np.full(len(dense), dense.shape[1], np.int64)
    if len(lengths) == len(dense) and lengths.max(initial=0) > dense.shape[1]:
        raise BatchError(
            f"column '{column.name}' has width {dense.shape[1]}, "
            f"the longest row {int(lengths.max())}"
        )
    if len(lengths) != len(dense):
        raise BatchError(f"column '{column.name}' has {len(dense)} rows, the batch {len(lengths)}")
    return Packed.from_padded(dense, lengths, left=column.axis == "P")

"""Where batch columns lie, and how just the rows that are read get to their reader."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.packed import Packed, ragged_take

__all__ = [
    "CountedTransfer",
    "Handle",
    "LocalTransfer",
    "Produced",
    "RowRef",
    "TransferEngine",
    "travels",
]

_IN_HANDLE = 64
"""Bytes a row up to which the values of a column without lengths travel in its handle."""
_NUMBERS = itertools.count()
"""Blocks of this process."""


def travels(column: Packed) -> bool:
    """Whether an engine that stores blocks elsewhere had better leave a column in its handle.

    Not opaque ones: texts grow with the responses, and who holds handles reads few of them.
    """
    opaque = column.values.dtype == object
    small = column.lengths is None and not opaque
    return small and column.values.nbytes <= _IN_HANDLE * len(column)


class RowRef(ABC):
    """A handle's ``ref`` that tells rows apart: for an engine that stores each by itself."""

    @abstractmethod
    def view(self, rows: NDArray[np.int64]) -> RowRef:
        """A reference to just these of its rows, (n,)."""


@dataclass(frozen=True)
class Handle:
    """One block of one column, ``key`` unique in the run: who made it, how to reach it.

    Lengths (tokens) travel with the handle, and so may ``values``: one a row, which in a column
    with lengths stands at each of the row's tokens. Everything else stays where it was made and is
    reached through ``ref``. A view holds some rows of a block: ``starts`` (rows,) says where each
    begins in the block's values, None where the rows are the block's, side by side. ``nbytes`` are
    the whole block's in either case.
    """

    key: str
    column: str
    rows: int
    lengths: NDArray[np.int64] | None
    values: NDArray[Any] | None
    nbytes: int
    owner: str
    ref: Any = None
    starts: NDArray[np.int64] | None = None

    def view(self, rows: NDArray[np.int64]) -> Handle:
        """A handle to just these of its rows, (n,), so that a rank is sent what it needs."""
        return replace(
            self,
            rows=len(rows),
            lengths=None if self.lengths is None else self.lengths[rows],
            values=None if self.values is None else self.values[rows],
            starts=self._begins[rows],
            ref=self.ref.view(rows) if isinstance(self.ref, RowRef) else self.ref,
        )

    @property
    def carries(self) -> bool:
        """Whether the values travel with the handle."""
        return self.values is not None

    def carried(self, rows: NDArray[np.int64]) -> Packed:
        """These of its rows, (n,), where it carries their values."""
        assert self.values is not None, f"block {self.key} lies elsewhere"
        values = self.values[rows]
        if self.lengths is None:
            return Packed(values)
        lengths = self.lengths[rows]
        return Packed(np.repeat(values, lengths), lengths)

    def gather(self, values: NDArray[Any], rows: NDArray[np.int64]) -> Packed:
        """These of its rows, (n,), out of the values of the whole block."""
        if self.lengths is None:
            return Packed(values[self.begins(rows)])
        lengths = self.lengths[rows]
        return Packed(ragged_take(values, self.begins(rows), lengths), lengths)

    def begins(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these of its rows, (n,), begin in the values of the whole block."""
        return self._begins[rows]

    def span(self, rows: NDArray[np.int64]) -> slice | None:
        """Where these of its rows, (n,), lie in the block's values; None if not side by side."""
        if self.lengths is None or not len(rows):
            return None
        begins = self.begins(rows)
        ends = begins + self.lengths[rows]
        side_by_side = np.array_equal(begins[1:], ends[:-1])
        return slice(int(begins[0]), int(ends[-1])) if side_by_side else None

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        if self.starts is not None:
            return self.starts
        if self.lengths is None:
            return np.arange(self.rows, dtype=np.int64)
        return np.cumsum(self.lengths) - self.lengths

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_begins"}


@dataclass(frozen=True)
class Produced:
    """What a hosted object's method returns beside a value: columns for the transfer engine.

    The caller gets ``(value, {column: Handle})``.
    """

    value: Any
    columns: Mapping[str, Packed]


class TransferEngine(ABC):
    """Stores blocks of columns and reads rows of them.

    A lost block raises ``BatchError`` naming column and owner. ``bytes_read`` counts the bytes of
    columns and handles that this process has deserialised, the controller's among them.
    """

    caller_owned: ClassVar[bool] = False
    """Whether columns that a worker makes travel as return objects, which the caller owns: a
    worker then makes handles by :meth:`describe`, and the cluster completes them there."""
    forgets: ClassVar[bool] = True
    """Whether a freed block cannot be read any more, even where a handle to it is left."""
    bytes_read: int = 0

    def start(self) -> None:
        """On the controller, once its cluster is there and pools have their places, before workers.

        Raises ConfigError where the engine cannot work there.
        """

    @abstractmethod
    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """Store one block a column; returns its handle by column name."""

    @abstractmethod
    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """Read the given rows of each handle, in the given order.

        :meth:`Handle.gather` finds them in the block, of which the handle may be a view.
        """

    def fetch(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """Rows of handles, (n,) each, from where their values are: the handle, or :meth:`get`."""
        far = [(handle, rows) for handle, rows in pieces if not handle.carries]
        fetched = iter(self.get(far) if far else [])
        return [h.carried(rows) if h.carries else next(fetched) for h, rows in pieces]

    @abstractmethod
    def free(self, handles: Iterable[Handle]) -> None:
        """Forget blocks; later reads of them raise."""

    def describe(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """Handles of columns that are not stored yet; only where ``caller_owned``."""
        raise NotImplementedError(f"{type(self).__name__} stores columns itself")

    def bundles(self, handles: Mapping[str, Handle]) -> list[tuple[str, ...]]:
        """Names of described columns that do not travel in their handles, object by object.

        What :meth:`stored` gives of them is returned as a list for each object; only where
        ``caller_owned``.
        """
        raise NotImplementedError(f"{type(self).__name__} stores columns itself")

    def stored(self, column: Packed) -> Any:
        """What of a column goes into an object; only where ``caller_owned``."""
        raise NotImplementedError(f"{type(self).__name__} stores columns itself")

    def attach(self, handle: Handle, stored: Any, place: int) -> Handle:
        """A described handle as this engine reads it: its values are at ``place`` of an object.

        ``stored`` is the cluster's reference to that; only where ``caller_owned``.
        """
        raise NotImplementedError(f"{type(self).__name__} stores columns itself")

    def close(self) -> None:
        """Give back what the engine holds."""


class CountedTransfer(TransferEngine):
    """An engine as one of its users sees it: ``bytes_read`` is what came into that user's hands.

    The controller reads through one, so that what it materialises is known, also where a worker in
    the same process reads through the engine itself.
    """

    def __init__(self, engine: TransferEngine) -> None:
        self.engine = engine
        self._mine = 0

    @property
    def bytes_read(self) -> int:  # type: ignore[override]  # a counter that others only read
        """Bytes that were read here, and those that the engine deserialised in this process."""
        return self._mine + self.engine.bytes_read

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        return self.engine.put(columns)

    def attach(self, handle: Handle, stored: Any, place: int) -> Handle:
        """See :class:`TransferEngine`."""
        return self.engine.attach(handle, stored, place)

    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        return self.engine.get(pieces)

    def fetch(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        before = self.engine.bytes_read
        found = self.engine.fetch(pieces)
        deserialised = self.engine.bytes_read - before
        self._mine += max(sum(packed.nbytes for packed in found) - deserialised, 0)
        return found

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`."""
        self.engine.free(handles)

    def close(self) -> None:
        """See :class:`TransferEngine`."""
        self.engine.close()


class LocalTransfer(TransferEngine):
    """Blocks as references inside one process: nothing is copied, freeing is dropping.

    A block lives as long as a handle to it.
    """

    forgets = False

    def __init__(self, owner: str = "local") -> None:
        self._owner = owner

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        handles = {}
        for name, packed in columns.items():
            opaque = packed.values.dtype == object
            handles[name] = Handle(
                key=f"{self._owner}/{next(_NUMBERS)}",
                column=name,
                rows=len(packed),
                lengths=packed.lengths,
                values=None if packed.lengths is not None or opaque else packed.values,
                nbytes=packed.nbytes,
                owner=self._owner,
                ref=packed,
            )
        return handles

    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        return [handle.gather(handle.ref.values, rows) for handle, rows in pieces]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`."""

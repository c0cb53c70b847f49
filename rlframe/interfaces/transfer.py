"""Where batch columns lie, and how just the rows that are read get to their reader."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.packed import Packed

__all__ = ["CountedTransfer", "Handle", "LocalTransfer", "TransferEngine"]

_NUMBERS = itertools.count()
"""Blocks of this process."""


@dataclass(frozen=True)
class Handle:
    """One block of one column, ``key`` unique in the run: who made it, how to reach it.

    Lengths (tokens) travel with the handle, and so may ``values``: one a row, which in a column
    with lengths stands at each of the row's tokens. Everything else stays where it was made and is
    reached through ``ref``.
    """

    key: str
    column: str
    rows: int
    lengths: NDArray[np.int64] | None
    values: NDArray[Any] | None
    nbytes: int
    owner: str
    ref: Any = None


class TransferEngine(ABC):
    """Stores blocks of columns and reads rows of them.

    A lost block raises ``BatchError`` naming column and owner.
    """

    @abstractmethod
    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """Store one block a column; returns its handle by column name."""

    @abstractmethod
    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """Read the given rows of each block, in the given order."""

    def fetch(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """Rows of blocks, from the handle where its values travel with it, else by :meth:`get`."""
        far = [piece for piece in pieces if piece[0].values is None]
        fetched = iter(self.get(far) if far else [])
        return [_carried(h, r) if h.values is not None else next(fetched) for h, r in pieces]

    @abstractmethod
    def free(self, handles: Iterable[Handle]) -> None:
        """Forget blocks; later reads of them raise."""

    def close(self) -> None:
        """Give back what the engine holds."""


class CountedTransfer(TransferEngine):
    """An engine as its user sees it: ``bytes_read`` is what was read through this object, bytes.

    The controller reads through one, so that what it materialises is known.
    """

    def __init__(self, engine: TransferEngine) -> None:
        self.engine = engine
        self.bytes_read = 0

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        return self.engine.put(columns)

    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        return self.engine.get(pieces)

    def fetch(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        found = self.engine.fetch(pieces)
        self.bytes_read += sum(packed.nbytes for packed in found)
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
        return [handle.ref.take(rows) for handle, rows in pieces]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`."""


def _carried(handle: Handle, rows: NDArray[np.int64]) -> Packed:
    assert handle.values is not None
    values = handle.values[rows]
    if handle.lengths is None:
        return Packed(values)
    lengths = handle.lengths[rows]
    return Packed(np.repeat(values, lengths), lengths)

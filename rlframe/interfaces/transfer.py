"""Where batch columns lie, and how just the rows that are read get to their reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.packed import Packed

__all__ = ["Handle", "LocalTransfer", "TransferEngine"]


@dataclass(frozen=True)
class Handle:
    """One block of one column: who made it, how to reach it.

    Lengths (tokens) and the values of per-row columns travel with the handle; the values of ragged
    columns stay where they were made and are reached through ``ref``.
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

    @abstractmethod
    def free(self, handles: Iterable[Handle]) -> None:
        """Forget blocks; later reads of them raise."""

    def close(self) -> None:
        """Give back what the engine holds."""


class LocalTransfer(TransferEngine):
    """Blocks as references inside one process: nothing is copied, freeing is dropping.

    A block lives as long as a handle to it.
    """

    def __init__(self, owner: str = "local") -> None:
        self._owner = owner
        self._count = 0

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        handles = {}
        for name, packed in columns.items():
            self._count += 1
            handles[name] = Handle(
                key=f"{self._owner}/{self._count}",
                column=name,
                rows=len(packed),
                lengths=packed.lengths,
                values=None if packed.lengths is not None else packed.values,
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

"""Where batch columns lie, and how just the rows that are read get to their reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlframe.packed import Packed, ragged_index

__all__ = ["Handle", "LocalTransfer", "Produced", "TransferEngine"]


@dataclass(frozen=True)
class Handle:
    """One block of one column: who made it, how to reach it.

    Lengths (tokens) and the values of per-row columns travel with the handle; the values of ragged
    columns stay where they were made and are reached through ``ref``. A view holds some rows of a
    block: ``starts`` (rows,) says where each begins in the block's values, None where the rows are
    the block's, side by side. ``nbytes`` are the whole block's in either case.
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
        )

    def gather(self, values: NDArray[Any], rows: NDArray[np.int64]) -> Packed:
        """These of its rows, (n,), out of the values of the whole block."""
        if self.lengths is None:
            return Packed(values[rows if self.starts is None else self.starts[rows]])
        lengths = self.lengths[rows]
        return Packed(values[ragged_index(self._begins[rows], lengths)], lengths)

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
    worker then makes handles by :meth:`describe`, and the cluster sets their ``ref``."""
    forgets: ClassVar[bool] = True
    """Whether a freed block cannot be read any more, even where a handle to it is left."""
    bytes_read: int = 0

    @abstractmethod
    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """Store one block a column; returns its handle by column name."""

    @abstractmethod
    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """Read the given rows of each handle, in the given order.

        :meth:`Handle.gather` finds them in the block, of which the handle may be a view.
        """

    @abstractmethod
    def free(self, handles: Iterable[Handle]) -> None:
        """Forget blocks; later reads of them raise."""

    def describe(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """Handles of columns that are not stored yet; only where ``caller_owned``."""
        raise NotImplementedError(f"{type(self).__name__} stores columns itself")

    def attach(self, handle: Handle) -> Handle:
        """A described handle whose ``ref`` the cluster has set, as this engine reads it."""
        return handle

    def close(self) -> None:
        """Give back what the engine holds."""


class LocalTransfer(TransferEngine):
    """Blocks as references inside one process: nothing is copied, freeing is dropping.

    A block lives as long as a handle to it.
    """

    forgets = False

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
        return [handle.gather(handle.ref.values, rows) for handle, rows in pieces]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`."""

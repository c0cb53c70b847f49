"""Columns as numpy buffers in Ray's object store: one object a column and block.

A reader on the same node maps the buffer and copies the rows that it wants; what a worker makes is
a return object of its call, so that it belongs to the caller and outlives the worker.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import BatchError
from rlframe.interfaces.transfer import Handle, TransferEngine
from rlframe.packed import Packed

__all__ = ["RayTransfer"]

_IN_HANDLE = 64
"""Bytes a row up to which the values of a column without lengths travel in its handle."""


@dataclass
class _Block:
    """A reference to an object of the store; None once it was freed here."""

    object: Any


class RayTransfer(TransferEngine):
    """See the module. Needs ``cluster: ray``."""

    @dataclass(frozen=True)
    class Config:
        """The transfer has no options."""

    caller_owned = True

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.bytes_read = 0
        self._count = itertools.count(1)
        self._owner = f"{socket.gethostname()}/{os.getpid()}"
        _here[:] = [self]

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_process, (self.config,)

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        import ray

        handles = self.describe(columns)
        for name, handle in handles.items():
            if handle.values is None:
                handles[name] = replace(handle, ref=_Block(ray.put(columns[name].values)))
        return handles

    def describe(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        return {name: self._describe(name, packed) for name, packed in columns.items()}

    def attach(self, handle: Handle) -> Handle:
        """See :class:`TransferEngine`."""
        return handle if handle.ref is None else replace(handle, ref=_Block(handle.ref))

    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`; whole blocks are read-only views of the store."""
        handles = [handle for handle, _ in pieces]
        values = self._values(handles)
        return [
            _rows(handle, found, rows) for found, (handle, rows) in zip(values, pieces, strict=True)
        ]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`; the store drops a block that no process reads any more."""
        for handle in handles:
            if handle.ref is not None:
                handle.ref.object = None

    def _values(self, handles: Sequence[Handle]) -> list[NDArray[Any]]:
        import ray

        apart = [handle for handle in handles if handle.values is None]
        try:
            fetched = ray.get([_object(handle) for handle in apart])
        except (ray.exceptions.RayError, ValueError) as error:
            raise self._lost(apart) from error
        found = {id(handle): array for handle, array in zip(apart, fetched, strict=True)}
        self.bytes_read += sum(int(array.nbytes) for array in fetched)
        return [found[id(h)] if h.values is None else h.values for h in handles]

    def _lost(self, handles: Sequence[Handle]) -> BatchError:
        """Which of the blocks cannot be read."""
        import ray

        for handle in handles:
            try:
                ray.get(_object(handle))
            except (ray.exceptions.RayError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                return BatchError(
                    f"column '{handle.column}' made by {handle.owner} is lost "
                    f"({handle.rows} rows): {type(error).__name__}: {reason}"
                )
        return BatchError("a block could not be read at first, and could be a moment later")

    def _describe(self, name: str, packed: Packed) -> Handle:
        with_handle = packed.lengths is None and _size(packed.values) <= _IN_HANDLE * len(packed)
        return Handle(
            key=f"{self._owner}/{next(self._count)}",
            column=name,
            rows=len(packed),
            lengths=packed.lengths,
            values=packed.values if with_handle else None,
            nbytes=packed.nbytes,
            owner=self._owner,
        )


def _object(handle: Handle) -> Any:
    if handle.ref.object is None:
        raise BatchError(
            f"column '{handle.column}' made by {handle.owner} was freed: its batch is done"
        )
    return handle.ref.object


def _rows(handle: Handle, values: NDArray[Any], rows: NDArray[np.int64]) -> Packed:
    """The rows of a handle, without a copy where they are a whole ragged block."""
    if handle.values is not None:
        return Packed(handle.values[rows])
    whole = handle.starts is None and np.array_equal(rows, np.arange(handle.rows))
    if whole and handle.lengths is not None:
        return Packed(values, handle.lengths)
    return handle.gather(values, rows)


def _size(values: NDArray[Any]) -> int:
    """Bytes that values take on their way."""
    return len(pickle.dumps(values)) if values.dtype == object else int(values.nbytes)


_here: list[RayTransfer] = []
"""The engine of this process: batches that are sent here use it, so it counts what they read."""


def _of_this_process(config: Any) -> RayTransfer:
    return _here[0] if _here else RayTransfer(config)

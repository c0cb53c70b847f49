"""Columns as numpy buffers in Ray's object store; small ones made together share an object.

A reader on the same node maps the buffer and copies the rows that it wants; what a worker makes is
a return object of its call, so that it belongs to the caller and outlives the worker. Opaque rows
are pickled one by one, in objects of their own: a reader makes the rows that it wants, no others.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.opaque import PickledRows
from rlframe.batching.packed import Packed
from rlframe.errors import BatchError, LostError
from rlframe.interfaces.transfer import Handle, TransferEngine, travels

__all__ = ["RayTransfer"]

_TOGETHER = 64 * 2**20
"""Bytes of columns that one object holds at most, where it holds several: an object costs
messages, and a reader on another node fetches whole ones."""


@dataclass
class _Block:
    """One of the arrays of an object of the store; no object once it was freed here."""

    object: Any
    place: int = 0
    opaque: bool = False


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
        for names in self.bundles(handles):
            stored = ray.put([self.stored(columns[name]) for name in names])
            for place, name in enumerate(names):
                handles[name] = self.attach(handles[name], stored, place)
        return handles

    def describe(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        return {name: self._describe(name, packed) for name, packed in columns.items()}

    def bundles(self, handles: Mapping[str, Handle]) -> list[tuple[str, ...]]:
        """See :class:`TransferEngine`."""
        apart = {name: handle for name, handle in handles.items() if handle.ref is not None}
        return [
            names
            for opaque in (False, True)
            for names in _filled({n: h for n, h in apart.items() if h.ref.opaque == opaque})
        ]

    def stored(self, column: Packed) -> Any:
        """See :class:`TransferEngine`."""
        values = column.values
        return PickledRows.of(values) if values.dtype == object else values

    def attach(self, handle: Handle, stored: Any, place: int) -> Handle:
        """See :class:`TransferEngine`."""
        return replace(handle, ref=replace(handle.ref, object=stored, place=place))

    def get(self, pieces: Sequence[tuple[Handle, NDArray[np.int64]]]) -> list[Packed]:
        """See :class:`TransferEngine`; neighbours in a ragged block are read-only views of it."""
        handles = [handle for handle, _ in pieces]
        values = self._values(handles)
        return [
            self._rows(handle, found, rows)
            for found, (handle, rows) in zip(values, pieces, strict=True)
        ]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`; the store drops a block that no process reads any more."""
        for handle in handles:
            if handle.ref is not None:
                handle.ref.object = None

    def _rows(self, handle: Handle, found: Any, rows: NDArray[np.int64]) -> Packed:
        if not isinstance(found, PickledRows):
            return _rows(handle, found, rows)
        wanted = handle.begins(rows)
        self.bytes_read += found.bytes_of(wanted)
        return Packed(found.rows(wanted))

    def _values(self, handles: Sequence[Handle]) -> list[Any]:
        import ray

        apart = [handle for handle in handles if handle.values is None]
        try:
            fetched = ray.get([_object(handle) for handle in apart])
        except (ray.exceptions.RayError, ValueError) as error:
            raise self._lost(apart) from error
        arrays = [arrays[h.ref.place] for h, arrays in zip(apart, fetched, strict=True)]
        found = {id(handle): array for handle, array in zip(apart, arrays, strict=True)}
        self.bytes_read += sum(int(one.nbytes) for one in arrays if isinstance(one, np.ndarray))
        return [found[id(h)] if h.values is None else h.values for h in handles]

    def _lost(self, handles: Sequence[Handle]) -> LostError:
        """Which of the blocks cannot be read."""
        import ray

        for handle in handles:
            try:
                ray.get(_object(handle))
            except (ray.exceptions.RayError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                return LostError(
                    f"column '{handle.column}' made by {handle.owner} is lost "
                    f"({handle.rows} rows): {type(error).__name__}: {reason}"
                )
        return LostError("a block could not be read at first, and could be a moment later")

    def _describe(self, name: str, packed: Packed) -> Handle:
        with_handle = travels(packed)
        return Handle(
            key=f"{self._owner}/{next(self._count)}",
            column=name,
            rows=len(packed),
            lengths=packed.lengths,
            values=packed.values if with_handle else None,
            nbytes=packed.nbytes,
            owner=self._owner,
            ref=None if with_handle else _Block(None, opaque=packed.values.dtype == object),
        )


def _object(handle: Handle) -> Any:
    if handle.ref.object is None:
        raise BatchError(
            f"column '{handle.column}' made by {handle.owner} was freed: its batch is done"
        )
    return handle.ref.object


def _rows(handle: Handle, values: NDArray[Any], rows: NDArray[np.int64]) -> Packed:
    """The rows of a handle, without a copy where they are ragged and lie side by side."""
    if handle.values is not None:
        return Packed(handle.values[rows])
    span = handle.span(rows)
    if span is not None and handle.lengths is not None:
        return Packed(values[span], handle.lengths[rows])
    return handle.gather(values, rows)


def _filled(handles: Mapping[str, Handle]) -> list[tuple[str, ...]]:
    """Columns in objects of so many bytes at most, or of one column."""
    found: list[list[str]] = []
    room = 0
    for name, handle in handles.items():
        if handle.nbytes > room:
            found.append([])
            room = _TOGETHER
        found[-1].append(name)
        room -= handle.nbytes
    return [tuple(names) for names in found]


_here: list[RayTransfer] = []
"""The engine of this process: batches that are sent here use it, so it counts what they read."""


def _of_this_process(config: Any) -> RayTransfer:
    return _here[0] if _here else RayTransfer(config)

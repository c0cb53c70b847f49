"""Columns in the TransferQueue package: a sample a row, a field a column, read by row and field.

Opaque rows are stored as their pickles. What is small travels in the handle and is not stored.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.opaque import PickledRows
from rlframe.batching.packed import Packed
from rlframe.config import check_range
from rlframe.errors import BatchError
from rlframe.interfaces.transfer import Handle, RowRef, TransferEngine, travels
from rlframe_plugins.transfer.transferqueue_actors import TransferQueueSystem

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TransferQueueTransfer"]

_PARTITION = "rlframe"
Rows = NDArray[np.int64]


@dataclass
class _Block:
    """A column as it was stored: ``stem`` is what the keys of its rows begin with.

    ``columns`` were stored together, under the same keys; ``tail`` is the shape of a row, or of a
    token of it.
    """

    stem: str
    columns: int
    rows: int
    dtype: str
    tail: tuple[int, ...]
    freed: bool = False


@dataclass(frozen=True)
class _Ref(RowRef):
    """Rows of a block, all of them where ``rows`` is None."""

    block: _Block
    rows: Rows | None = None

    def view(self, rows: Rows) -> _Ref:
        """See :class:`RowRef`."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def keys(self, rows: Rows) -> list[str]:
        """The keys of these of its rows."""
        wanted = rows if self.rows is None else self.rows[rows]
        return [f"{self.block.stem}/{row}" for row in wanted.tolist()]


class TransferQueueTransfer(TransferEngine):
    """See the module. Needs ``cluster: ray`` with free CPUs for the actors of TransferQueue."""

    @dataclass(frozen=True)
    class Config:
        """Options of the transfer by TransferQueue."""

        units: int = 1
        """Storage units, at least 1; each takes a CPU of Ray, as does the controller of them."""
        start_timeout_s: float = 120.0
        """Longest start of its actors, seconds, above 0."""
        timeout_s: float = 300.0
        """Longest request, seconds, above 0; an actor that has ended is noticed sooner."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "units", 1)
            check_range(self, "start_timeout_s", above=0)
            check_range(self, "timeout_s", above=0)

    def __init__(self, config: Any = None) -> None:
        self.config = config or self.Config()
        self.bytes_read = 0
        self._count = itertools.count(1)
        self._owner = f"{socket.gethostname()}/{os.getpid()}"
        self._name = uuid.uuid4().hex[:12]
        self._left: dict[str, int] = {}
        options = self.config
        self._queue = TransferQueueSystem(options.units, options.start_timeout_s, options.timeout_s)
        _here[:] = [self]

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_process, (self.config,)

    def start(self) -> None:
        """See :class:`TransferEngine`."""
        self._queue.start()

    def put(self, columns: Mapping[str, Packed]) -> dict[str, Handle]:
        """See :class:`TransferEngine`."""
        apart = {name: packed for name, packed in columns.items() if not travels(packed)}
        refs: dict[str, _Ref] = {}
        for rows in {len(packed) for packed in apart.values()}:
            alike = {name: packed for name, packed in apart.items() if len(packed) == rows}
            refs |= self._store(alike, rows)
        return {name: self._handle(name, one, refs.get(name)) for name, one in columns.items()}

    def get(self, pieces: Sequence[tuple[Handle, Rows]]) -> list[Packed]:
        """See :class:`TransferEngine`."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        apart = [(handle, rows) for handle, rows in pieces if not handle.carries]
        for name in dict.fromkeys(handle.column for handle, _ in apart):
            found[name] = self._column([(h, rows) for h, rows in apart if h.column == name])
        return [
            h.carried(rows) if h.carries else _packed(h, rows, found[h.column])
            for h, rows in pieces
        ]

    def free(self, handles: Iterable[Handle]) -> None:
        """See :class:`TransferEngine`; rows go once all columns that were stored with them do."""
        keys: list[str] = []
        for handle in handles:
            if handle.ref is None or handle.ref.block.freed:
                continue
            block = handle.ref.block
            block.freed = True
            left = self._left.pop(block.stem, block.columns) - 1
            if left:
                self._left[block.stem] = left
            else:
                keys += [f"{block.stem}/{row}" for row in range(block.rows)]
        if keys:
            import transfer_queue

            self._queue.run(lambda: transfer_queue.async_kv_clear(keys, _PARTITION))

    def close(self) -> None:
        """See :class:`TransferEngine`."""
        self._queue.close()

    # --- storing ------------------------------------------------------------------------------

    def _store(self, columns: Mapping[str, Packed], rows: int) -> dict[str, _Ref]:
        import transfer_queue
        from tensordict import TensorDict

        stem = f"{self._name}/{next(self._count)}"
        if rows:
            keys = [f"{stem}/{row}" for row in range(rows)]

            def send() -> Any:
                fields = TensorDict({n: _field(c) for n, c in columns.items()}, batch_size=[rows])
                return transfer_queue.async_kv_batch_put(keys, _PARTITION, fields)

            try:
                self._queue.run(send)
            except Exception as error:
                raise BatchError(
                    f"columns {', '.join(columns)} cannot be stored by {self._owner}: {error}"
                ) from error
        return {
            name: _Ref(_Block(stem, len(columns), rows, one.values.dtype.str, one.values.shape[1:]))
            for name, one in columns.items()
        }

    def _handle(self, name: str, packed: Packed, ref: _Ref | None) -> Handle:
        return Handle(
            key=f"{self._name}/{next(self._count)}",
            column=name,
            rows=len(packed),
            lengths=packed.lengths,
            values=packed.values if ref is None else None,
            nbytes=packed.nbytes,
            owner=self._owner,
            ref=ref,
        )

    # --- reading ------------------------------------------------------------------------------

    def _column(self, pieces: Sequence[tuple[Handle, Rows]]) -> dict[str, NDArray[Any]]:
        """The rows of one column by key, each fetched once, in one request."""
        keys: dict[str, None] = {}
        for handle, rows in pieces:
            if handle.ref.block.freed:
                raise BatchError(
                    f"column '{handle.column}' made by {handle.owner} was freed: its batch is done"
                )
            keys |= dict.fromkeys(_keys(handle, rows))
        try:
            found = self._rows(pieces[0][0].column, list(keys))
        except Exception as error:
            raise self._lost(pieces, error) from error
        self.bytes_read += sum(int(one.nbytes) for one in found.values())
        return found

    def _rows(self, column: str, keys: list[str]) -> dict[str, NDArray[Any]]:
        import transfer_queue

        if not keys:
            return {}
        data = self._queue.run(
            lambda: transfer_queue.async_kv_batch_get(keys, _PARTITION, select_fields=[column])
        )
        rows = _arrays(data[column])
        if len(rows) != len(keys):
            raise LookupError(f"{len(keys) - len(rows)} of {len(keys)} rows are not there")
        return dict(zip(keys, rows, strict=True))

    def _lost(self, pieces: Sequence[tuple[Handle, Rows]], error: Exception) -> BatchError:
        """Which of the blocks cannot be read."""
        for handle, rows in pieces:
            try:
                self._rows(handle.column, _keys(handle, rows))
            except Exception as again:  # noqa: BLE001 - told below
                return BatchError(
                    f"column '{handle.column}' made by {handle.owner} is lost ({handle.rows} "
                    f"rows): {type(again).__name__}: {again}"
                )
        return BatchError(f"a block could not be read at first ({error}), and could a moment later")


def _field(packed: Packed) -> Tensor:
    """A column as TransferQueue takes it: a dense tensor, or rows of their own lengths."""
    import torch

    values, lengths = packed.values, packed.lengths
    if values.dtype == object:
        stored = PickledRows.of(values)
        lengths = stored.spans[:, 1] - stored.spans[:, 0]
        parts = [stored.data[begin:end] for begin, end in stored.spans.tolist()]
        values = np.concatenate(parts)
    tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    if lengths is None:
        return tensor
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return torch.nested.nested_tensor_from_jagged(tensor, offsets)


def _arrays(field: Any) -> list[NDArray[Any]]:
    """The rows of a field that came: a dense or nested tensor, or a list of tensors."""
    import torch

    if not isinstance(field, torch.Tensor):
        return [one.numpy() for one in field.tolist()]
    return [one.numpy() for one in (field.unbind() if field.is_nested else field)]


def _keys(handle: Handle, rows: Rows) -> list[str]:
    """Keys of these rows of a handle that hold anything."""
    filled = rows if handle.lengths is None else rows[handle.lengths[rows] > 0]
    keys: list[str] = handle.ref.keys(filled)
    return keys


def _packed(handle: Handle, rows: Rows, found: Mapping[str, NDArray[Any]]) -> Packed:
    block: _Block = handle.ref.block
    parts = [found[key] for key in _keys(handle, rows)]
    if block.dtype == "|O":
        values = np.empty(len(parts), object)
        for place, part in enumerate(parts):
            values[place] = pickle.loads(part.data)
        return Packed(values)
    if not parts:
        values = np.zeros((0, *block.tail), block.dtype)
    else:
        values = np.concatenate(parts) if handle.lengths is not None else np.stack(parts)
    return Packed(values, None if handle.lengths is None else handle.lengths[rows])


_here: list[TransferQueueTransfer] = []
"""The engine of this process: batches that are sent here use it, so it counts what they read."""


def _of_this_process(config: Any) -> TransferQueueTransfer:
    return _here[0] if _here else TransferQueueTransfer(config)

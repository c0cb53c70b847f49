"""Weights through the memory of one machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlframe.weights.layout import Plan
from rlframe_plugins.transports.copying import Bytes, fill, read_memory
from rlframe_plugins.transports.files import DiskTransport, FileReceipt
from rlframe_plugins.transports.memory import (
    file_of,
    forget,
    forget_all,
    has_memory_files,
    mapped,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["SharedMemoryTransport"]


class SharedMemoryTransport(DiskTransport):
    """Files in memory, otherwise as on disk.

    Where the system has them the files have no name but belong to the trainer that staged them, so
    that none is left whatever ends it; elsewhere they are in the temporary folder.
    """

    def root(self) -> Path:
        """See :class:`DiskTransport`; only where files in memory need a name."""
        return Path(tempfile.gettempdir())

    def connect(self, answer: Any) -> None:
        """See :class:`Transport`."""
        if not has_memory_files():
            super().connect(answer)

    def stage(
        self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor], *, full: bool
    ) -> Any:
        """See :class:`Transport`; what was staged before is over."""
        if not self.config.keep_memory:
            forget((self.key, rank))
        return super().stage(plan, rank, version, views, full=full)

    def discard(self, receipts: Sequence[Any]) -> None:
        """See :class:`Transport`: without ``checkpoint.keep_memory`` gives the memory back."""
        if not has_memory_files():
            super().discard(receipts)
            return
        for receipt in (one for of_rank in receipts for one in of_rank):
            if not self.config.keep_memory:
                with contextlib.suppress(OSError):  # the trainer has ended, and its files with it
                    os.truncate(receipt.path, 0)

    def close(self) -> None:
        """See :class:`Transport`."""
        super().close()
        forget_all(self.key)

    def _write(
        self,
        rank: int,
        version: int,
        number: int,
        size: int,
        tensors: Iterable[Tensor],
        kind: torch.dtype,
    ) -> tuple[str, tuple[int, ...]]:
        if not has_memory_files():
            return super()._write(rank, version, number, size, tensors, kind)
        file = file_of((self.key, rank), number)
        room, checks, at = file.room(size), [], 0
        for tensor in tensors:
            width = tensor.numel() * kind.itemsize
            checks.append(fill(room[at : at + width], tensor, kind))
            at += width
        return file.path, tuple(checks)

    def _keep(self, rank: int, version: int, number: int, body: bytes) -> str:
        if not has_memory_files():
            return super()._keep(rank, version, number, body)
        file = file_of((self.key, rank), number)
        file.room(len(body))[:] = np.frombuffer(body, np.uint8)
        return file.path

    @contextlib.contextmanager
    def _opened(self, receipt: FileReceipt, rank: int) -> Iterator[Callable[[int, Bytes], int]]:
        if not has_memory_files() or not self.config.keep_memory:
            with super()._opened(receipt, rank) as read:
                yield read
            return
        memory = mapped((self.key, rank), receipt.path, receipt.nbytes)
        yield lambda at, into: read_memory(memory[at : at + len(into)], into)

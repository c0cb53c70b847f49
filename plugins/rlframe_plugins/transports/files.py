"""Weights through files that both pools see: memory of one machine, or a shared folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import BaseWeights, Codec, FetchedWeights, Transport
from rlframe.layout import Plan
from rlframe_plugins.reaper import Reaper
from rlframe_plugins.transports.bits import (
    Parts,
    bucket_bits,
    bucket_kind,
    buckets,
    pieces_of,
    put_bits,
    sent_bits,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DiskTransport", "FileReceipt", "SharedMemoryTransport"]

_sent: dict[tuple[str, int], tuple[int, list[NDArray[Any]]]] = {}
"""On a trainer, by transport and rank: the version staged last, and its elements by bucket."""
_open: dict[tuple[str, int], list[int]] = {}
"""On a trainer, by transport and rank: descriptors of the files in memory staged last."""
_reapers: dict[str, Reaper] = {}
"""On the controller, by transport: who removes its folder when the controller has ended."""
_NAME = "rlframe-weights-"
_ABANDONED_S = 86400.0
"""Age of a folder whose controller and reaper are both gone: as after a power cut."""


@dataclass(frozen=True)
class FileReceipt:
    """One bucket of a trainer's rank, of one type: its boxes lie one after the other in ``path``.

    ``base`` is the version that a delta is relative to, None for plain elements; ``crc32`` is of
    the file, ``whole_crc32`` of the elements that must come out.
    """

    version: int
    rank: int
    path: str
    parts: Parts
    nbytes: int
    crc32: int
    whole_crc32: int
    base: int | None


class DiskTransport(Transport):
    """A file a bucket in ``checkpoint.directory``, which every node sees under the same path.

    Files carry checksums and are removed once every replica has the version. The folder is the
    controller's: whatever ends that, a process beside it removes the folder, and no trainer makes
    it anew.
    """

    def __init__(self, config: Any = None, codec: Codec | None = None) -> None:
        super().__init__(config)
        self._codec = codec
        self._folder = str(self.root().expanduser().absolute() / f"{_NAME}{self.key}")

    def root(self) -> Path:
        """Where the folder of this run's files is made. Raises ConfigError."""
        if not self.config.directory:
            raise ConfigError("checkpoint.transport=disk needs checkpoint.directory=PATH")
        return Path(self.config.directory)

    def connect(self, answer: Any) -> None:
        """See :class:`Transport`: make the folder. Raises ConfigError where that cannot be."""
        folder = Path(self._folder)
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"checkpoint.directory={self.root()}: {error.strerror}") from error
        _reapers[self.key] = Reaper(folder)
        _remove_abandoned(folder)

    def stage(
        self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor], *, full: bool
    ) -> Any:
        """See :class:`Transport`."""
        base, before = _sent.pop((self.key, rank), (None, []))
        receipts, elements = [], []
        for number, parts in enumerate(buckets(plan, rank, self.config.bucket_mib * 2**20)):
            bits = bucket_bits(plan, rank, parts, views)
            old = before[number] if base is not None and not full else None
            receipts.append(self._write(rank, version, number, parts, bits, base, old))
            elements.append(bits)
        if self._codec is not None and self._codec.needs_base:
            _sent[self.key, rank] = (version, elements)
        return receipts

    def fetch(
        self, plan: Plan, rank: int, version: int, receipts: Sequence[Any], base: BaseWeights | None
    ) -> FetchedWeights:
        """See :class:`Transport`."""
        target = pieces_of(plan, rank)
        wanted = {(m.source, m.name, m.box) for m in plan.moves if m.target == rank}
        got = 0
        for receipt in (one for of_rank in receipts for one in of_rank):
            keys = {(receipt.rank, name, box) for name, box in receipt.parts}
            if not keys & wanted:
                continue
            bits = self._read(receipt, version, plan, rank, base)
            put_bits(target, receipt.parts, bits, plan)
            wanted -= keys
            got += receipt.nbytes
        if wanted:
            raise SyncError(f"version {version} lacks {len(wanted)} parts, as of {min(wanted)[1]}")
        return FetchedWeights(target.tensors, got)

    def discard(self, receipts: Sequence[Any]) -> None:
        """See :class:`Transport`."""
        for receipt in (one for of_rank in receipts for one in of_rank):
            Path(receipt.path).unlink(missing_ok=True)

    def close(self) -> None:
        """See :class:`Transport`."""
        reaper = _reapers.pop(self.key, None)
        if reaper is not None:
            reaper.finish()

    def _keep(self, rank: int, name: str, body: Any) -> str:
        """Write a file; its path."""
        path = Path(self._folder, name)
        try:
            path.write_bytes(body)
        except OSError as error:
            host = socket.gethostname()
            raise SyncError(
                f"rank {rank} on {host} cannot write {path}: {error.strerror}; every node must see "
                "checkpoint.directory under the same path, with room for the weights"
            ) from error
        return str(path)

    def _write(
        self,
        rank: int,
        version: int,
        number: int,
        parts: Parts,
        bits: NDArray[Any],
        base: int | None,
        old: NDArray[Any] | None,
    ) -> FileReceipt:
        data = self._codec.encode(bits, old) if self._codec is not None else None
        body: Any = bits.data if data is None else data
        path = self._keep(rank, f"v{version}-r{rank}-{number}.bin", body)
        crc, whole = zlib.crc32(body), zlib.crc32(bits.data)
        size = bits.nbytes if data is None else len(data)
        relative = None if data is None else base
        return FileReceipt(version, rank, path, parts, size, crc, whole, relative)

    def _read(
        self,
        receipt: FileReceipt,
        version: int,
        plan: Plan,
        rank: int,
        base: BaseWeights | None,
    ) -> NDArray[Any]:
        who = f"version {version}: the part of rank {receipt.rank}"
        if receipt.version != version:
            raise SyncError(f"{who} is of version {receipt.version}")
        try:
            data = np.fromfile(receipt.path, np.uint8)
        except OSError as error:
            raise SyncError(f"{who} is gone: {error}") from error
        if data.nbytes != receipt.nbytes or zlib.crc32(data.data) != receipt.crc32:
            raise SyncError(f"{who} is damaged")
        kind = bucket_kind(plan, receipt.parts)
        if receipt.base is None:
            return data.view(kind)
        if base is None or base.version != receipt.base or self._codec is None:
            have = "nothing" if base is None else f"version {base.version}"
            raise SyncError(f"{who} builds on version {receipt.base}, this replica has {have}")
        bits = self._codec.decode(data, sent_bits(plan, rank, receipt.parts, base.tensors))
        if zlib.crc32(bits.data) != receipt.whole_crc32:
            raise SyncError(f"{who} does not give the trainer's weights on version {receipt.base}")
        return bits


class SharedMemoryTransport(DiskTransport):
    """The same in the memory of one machine.

    Where the system has them the files have no name but belong to the trainer that staged them, so
    that none is left whatever ends it; elsewhere they are in the temporary folder.
    """

    def root(self) -> Path:
        """See :class:`DiskTransport`; only where files in memory need a name."""
        return Path(tempfile.gettempdir())

    def connect(self, answer: Any) -> None:
        """See :class:`Transport`."""
        if not _has_memory_files():
            super().connect(answer)

    def stage(
        self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor], *, full: bool
    ) -> Any:
        """See :class:`Transport`; what was staged before is over."""
        _forget(self.key, rank)
        return super().stage(plan, rank, version, views, full=full)

    def discard(self, receipts: Sequence[Any]) -> None:
        """See :class:`Transport`: gives the memory back; the empty files go with the next."""
        if not _has_memory_files():
            super().discard(receipts)
            return
        for receipt in (one for of_rank in receipts for one in of_rank):
            with contextlib.suppress(OSError):  # the trainer has ended, and its files with it
                os.truncate(receipt.path, 0)

    def close(self) -> None:
        """See :class:`Transport`."""
        super().close()
        for key, rank in [one for one in _open if one[0] == self.key]:
            _forget(key, rank)

    def _keep(self, rank: int, name: str, body: Any) -> str:
        if not _has_memory_files():
            return super()._keep(rank, name, body)
        descriptor = os.memfd_create(f"rlframe-{name}")
        _open.setdefault((self.key, rank), []).append(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(body)
        return f"/proc/{os.getpid()}/fd/{descriptor}"


def _remove_abandoned(mine: Path) -> None:
    """Folders beside this one that no controller's process has touched for a day."""
    now = mine.stat().st_mtime  # of the file system's clock, as theirs
    for other in mine.parent.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):
            if now - other.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(other, ignore_errors=True)


def _has_memory_files() -> bool:
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _forget(key: str, rank: int) -> None:
    for descriptor in _open.pop((key, rank), []):
        os.close(descriptor)

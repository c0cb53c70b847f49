"""Weights through files in a folder that both pools see."""

from __future__ import annotations

import contextlib
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import BaseWeights, Codec, FetchedWeights, Transport
from rlframe.weights.layout import Box, Plan
from rlframe_plugins.reaper import Reaper
from rlframe_plugins.transports.bits import (
    Parts,
    Target,
    base_bits,
    bucket_bits,
    bucket_type,
    buckets,
    part_views,
    pieces_of,
    put_bits,
    split_bits,
    whole_part,
)
from rlframe_plugins.transports.checksum import checksum
from rlframe_plugins.transports.copying import (
    Bytes,
    bytes_of,
    fill,
    read_file,
    write_file,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["DiskTransport", "FileReceipt"]

_sent: dict[tuple[str, int], tuple[int, list[NDArray[Any]]]] = {}
"""On a trainer, by transport and rank: the version staged last, and its elements by bucket."""
_targets: dict[tuple[str, int], list[Target]] = {}
"""On a replica, by transport and rank: storage that versions take turns in."""
_reapers: dict[str, Reaper] = {}
"""On the controller, by transport: who removes its folder when the controller has ended."""
_NAME = "rlframe-weights-"
_ABANDONED_S = 86400.0
"""Age of a folder whose controller and reaper are both gone: as after a power cut."""


@dataclass(frozen=True)
class FileReceipt:
    """One bucket of a trainer's rank, of one type: its boxes lie one after the other in ``path``.

    Plain elements have a checksum for each part. What a codec ``encoded`` has one of its bytes,
    and a CRC-32 of the elements that must come out, each in its place; ``base`` is the version that
    it is relative to, None where it needs none.
    """

    version: int
    rank: int
    path: str
    parts: Parts
    nbytes: int
    checks: tuple[int, ...]
    base: int | None = None
    encoded: bool = False


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
        codec = self._codec if self._codec is not None and not self._codec.plain else None
        receipts, elements = [], []
        for number, parts in enumerate(buckets(plan, rank, self.config.bucket_mib * 2**20)):
            tensors = part_views(plan, rank, parts, views)
            if codec is not None:
                bits = bucket_bits(plan, rank, parts, views)
                elements.append(bits)
                old = before[number] if base is not None and not full else None
                data = codec.encode(bits, old)
                if data is not None:
                    both = (checksum(np.frombuffer(data, np.uint8)), zlib.crc32(bits.data))
                    path = self._keep(rank, version, number, data)
                    on = base if codec.needs_base else None
                    size = len(data)
                    receipts.append(FileReceipt(version, rank, path, parts, size, both, on, True))
                    continue
                tensors = split_bits(plan, parts, bits)
            kind = bucket_type(plan, parts)
            size = sum(box.size for _, box in parts) * kind.itemsize
            path, checks = self._write(rank, version, number, size, tensors, kind)
            receipts.append(FileReceipt(version, rank, path, parts, size, checks))
        if codec is not None and codec.needs_base:
            _sent[self.key, rank] = (version, elements)
        return receipts

    def fetch(
        self, plan: Plan, rank: int, version: int, receipts: Sequence[Any], base: BaseWeights | None
    ) -> FetchedWeights:
        """See :class:`Transport`; what a replica was given before and serves is left alone."""
        target = self._target(plan, rank, base)
        wanted = {(m.source, m.name, m.box) for m in plan.moves if m.target == rank}
        got = 0
        for receipt in (one for of_rank in receipts for one in of_rank):
            keys = {(receipt.rank, name, box) for name, box in receipt.parts} & wanted
            if not keys:
                continue
            if receipt.version != version:
                raise SyncError(f"{_who(receipt, version)} is of version {receipt.version}")
            if not receipt.encoded:
                got += self._take(receipt, rank, plan, target, keys)
            else:
                bits = self._decoded(receipt, plan, rank, base)
                put_bits(target, receipt.parts, bits, plan)
                got += receipt.nbytes
            wanted -= keys
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

    # --- a trainer's files -------------------------------------------------------------------

    def _write(
        self,
        rank: int,
        version: int,
        number: int,
        size: int,
        tensors: Iterable[Tensor],
        kind: torch.dtype,
    ) -> tuple[str, tuple[int, ...]]:
        """Write parts one after the other as ``kind``; the path, and their checksums."""
        checks, at = [], 0
        with self._file(rank, version, number) as (path, file):
            for tensor in tensors:
                room = np.empty(tensor.numel() * kind.itemsize, np.uint8)
                checks.append(fill(room, tensor, kind))
                write_file(file, at, room)
                at += len(room)
        return path, tuple(checks)

    def _keep(self, rank: int, version: int, number: int, body: bytes) -> str:
        """Write a file; its path."""
        with self._file(rank, version, number) as (path, file):
            write_file(file, 0, np.frombuffer(body, np.uint8))
        return path

    @contextlib.contextmanager
    def _file(self, rank: int, version: int, number: int) -> Iterator[tuple[str, int]]:
        path = Path(self._folder, f"v{version}-r{rank}-{number}.bin")
        try:
            with path.open("wb") as file:
                yield str(path), file.fileno()
        except OSError as error:
            host = socket.gethostname()
            raise SyncError(
                f"rank {rank} on {host} cannot write {path}: {error.strerror}; every node must see "
                "checkpoint.directory under the same path, with room for the weights"
            ) from error

    # --- a replica's side --------------------------------------------------------------------

    def _target(self, plan: Plan, rank: int, base: BaseWeights | None) -> Target:
        """Storage that nobody uses: new, or that of the version before the one that serves."""
        held = _targets.setdefault((self.key, rank), [])
        if base is None or not self.config.keep_memory:
            held.clear()
        spare = [one for one in held if base is not None and not _shares(one, base)]
        if spare:
            return spare[0]
        target = pieces_of(plan, rank)
        held[:] = [*held[-1:], target]
        return target

    def _take(
        self,
        receipt: FileReceipt,
        rank: int,
        plan: Plan,
        target: Target,
        keys: set[tuple[int, str, Box]],
    ) -> int:
        """Read the wanted parts of plain elements to where they belong; their bytes."""
        kind = bucket_type(plan, receipt.parts)
        at = got = 0
        try:
            with self._opened(receipt, rank) as read:
                for part, check in zip(receipt.parts, receipt.checks, strict=True):
                    size = part[1].size * kind.itemsize
                    if (receipt.rank, *part) in keys:
                        place = whole_part(target, part)
                        room = bytes_of(place) if place is not None else np.empty(size, np.uint8)
                        if read(at, room) != check:
                            raise SyncError(f"{_who(receipt, receipt.version)} is damaged")
                        if place is None:
                            put_bits(target, (part,), room, plan)
                        got += size
                    at += size
        except OSError as error:
            raise SyncError(f"{_who(receipt, receipt.version)} is gone: {error}") from error
        return got

    def _decoded(
        self, receipt: FileReceipt, plan: Plan, rank: int, base: BaseWeights | None
    ) -> NDArray[Any]:
        """A bucket's elements from what a codec made of them."""
        who = _who(receipt, receipt.version)
        data = np.zeros(receipt.nbytes, np.uint8)
        try:
            with self._opened(receipt, rank) as read:
                found = read(0, data)
        except OSError as error:
            raise SyncError(f"{who} is gone: {error}") from error
        if found != receipt.checks[0]:
            raise SyncError(f"{who} is damaged")
        assert self._codec is not None, "encoded without a codec"
        old = base_bits(plan, rank, receipt.parts, receipt.base, base, who)
        bits = self._codec.decode(data, old)
        if zlib.crc32(bits.data) != receipt.checks[1]:
            raise SyncError(f"{who} does not give the trainer's weights on version {receipt.base}")
        return bits

    @contextlib.contextmanager
    def _opened(self, receipt: FileReceipt, rank: int) -> Iterator[Callable[[int, Bytes], int]]:
        """Reads bytes at an offset into memory and gives their checksum. Raises OSError."""
        with open(receipt.path, "rb") as file:
            yield lambda at, into: read_file(file.fileno(), at, into)


def _who(receipt: FileReceipt, version: int) -> str:
    return f"version {version}: the part of rank {receipt.rank}"


def _shares(target: Target, base: BaseWeights) -> bool:
    """Whether any of a replica's tensors lies in this storage."""
    mine = {tensor.untyped_storage().data_ptr() for tensor in target.tensors.values()}
    return any(tensor.untyped_storage().data_ptr() in mine for tensor in base.tensors.values())


def _remove_abandoned(mine: Path) -> None:
    """Folders beside this one that no controller's process has touched for a day."""
    now = mine.stat().st_mtime  # of the file system's clock, as theirs
    for other in mine.parent.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):
            if now - other.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(other, ignore_errors=True)

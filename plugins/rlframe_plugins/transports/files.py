"""Weights through files that both pools see: shared memory of one machine, or a shared folder."""

from __future__ import annotations

import os
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import FetchedWeights, Transport
from rlframe.layout import Box, Piece, Plan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DiskTransport", "FileReceipt", "SharedMemoryTransport"]

_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class FileReceipt:
    """One bucket of a trainer's rank: its boxes lie one after the other in ``path``."""

    version: int
    rank: int
    path: str
    parts: tuple[tuple[str, Box], ...]
    nbytes: int
    crc32: int


class DiskTransport(Transport):
    """A file a bucket in ``checkpoint.directory``, which every node sees under the same path.

    Files carry a checksum and are removed once every replica has the version.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        folder = self.root() / f"rlframe-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._folder = str(folder)

    def root(self) -> Path:
        """Where the folder of this run's files is made. Raises ConfigError."""
        if not self.config.directory:
            raise ConfigError("checkpoint.transport=disk needs checkpoint.directory=PATH")
        return Path(self.config.directory)

    def stage(self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor]) -> Any:
        """See :class:`Transport`."""
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        limit = self.config.bucket_mib * 2**20
        buckets = list(_buckets(plan, rank, limit))
        return [self._write(plan, rank, version, i, b, views) for i, b in enumerate(buckets)]

    def fetch(self, plan: Plan, rank: int, version: int, receipts: Sequence[Any]) -> FetchedWeights:
        """See :class:`Transport`."""
        import torch

        from rlframe.storage import allocate, dtypes

        types = dtypes(plan.target.params)
        pieces = plan.target.ranks[rank]
        tensors = allocate(pieces, types, torch.device("cpu"))
        by_name: dict[str, list[Piece]] = {}
        for piece in pieces:
            by_name.setdefault(piece.name, []).append(piece)
        wanted = {(m.source, m.name, m.box) for m in plan.moves if m.target == rank}
        got = 0
        for receipt in (one for rank_receipts in receipts for one in rank_receipts):
            if not any((receipt.rank, n, b) in wanted for n, b in receipt.parts):
                continue
            data = _read(receipt, version)
            for name, box, flat in _parts(receipt, data, types):
                if (receipt.rank, name, box) in wanted:
                    wanted.discard((receipt.rank, name, box))
                    got += flat.numel() * flat.element_size()
                    _fill(by_name[name], box, flat.reshape(box.shape), tensors)
        if wanted:
            raise SyncError(f"version {version} lacks {len(wanted)} parts, as of {min(wanted)[1]}")
        return FetchedWeights(tensors, got)

    def discard(self, receipts: Sequence[Any]) -> None:
        """See :class:`Transport`."""
        for receipt in (one for rank_receipts in receipts for one in rank_receipts):
            Path(receipt.path).unlink(missing_ok=True)
        folder = Path(self._folder)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def _write(
        self,
        plan: Plan,
        rank: int,
        version: int,
        number: int,
        parts: Sequence[tuple[str, Box]],
        views: Mapping[str, Tensor],
    ) -> FileReceipt:
        path = Path(self._folder) / f"v{version}-r{rank}-{number}.bin"
        size = crc = 0
        with path.open("wb") as file:
            for name, box in parts:
                data = _bytes_of(plan, rank, name, box, views)
                file.write(data)
                crc = zlib.crc32(data, crc)
                size += data.nbytes
        return FileReceipt(version, rank, str(path), tuple(parts), size, crc)


class SharedMemoryTransport(DiskTransport):
    """The same in the memory file system of one machine."""

    def root(self) -> Path:
        """``/dev/shm`` where there is one, else the temporary folder."""
        return _SHM if _SHM.is_dir() else Path(tempfile.gettempdir())


def _buckets(plan: Plan, rank: int, limit: int) -> Iterator[list[tuple[str, Box]]]:
    part: list[tuple[str, Box]] = []
    used = 0
    for name, box in dict.fromkeys((m.name, m.box) for m in plan.moves if m.source == rank):
        size = box.size * np.dtype(np.float32).itemsize
        if part and used + size > limit:
            yield part
            part, used = [], 0
        part.append((name, box))
        used += size
    if part:
        yield part


def _bytes_of(
    plan: Plan, rank: int, name: str, box: Box, views: Mapping[str, Tensor]
) -> memoryview:
    import torch

    from rlframe.storage import dtypes, local_view

    held = next(
        p for p in plan.source.ranks[rank] if p.name == name and p.box.intersect(box) == box
    )
    view = local_view(held, views[held.view.key])[box.slices(held.box)]
    wire = view.detach().to(dtypes({name: plan.target.params[name]})[name]).cpu().contiguous()
    return wire.reshape(-1).view(torch.uint8).numpy().data


def _read(receipt: FileReceipt, version: int) -> np.ndarray[Any, Any]:
    if receipt.version != version:
        raise SyncError(f"asked for version {version}, rank {receipt.rank} staged another")
    try:
        data = np.fromfile(receipt.path, np.uint8)
    except OSError as error:
        raise SyncError(
            f"version {version}: the part of rank {receipt.rank} is gone: {error}"
        ) from error
    if data.nbytes != receipt.nbytes or zlib.crc32(data.data) != receipt.crc32:
        raise SyncError(f"version {version}: the part of rank {receipt.rank} is damaged")
    return data


def _parts(
    receipt: FileReceipt, data: np.ndarray[Any, Any], types: Mapping[str, Any]
) -> Iterator[tuple[str, Box, Tensor]]:
    import torch

    start = 0
    for name, box in receipt.parts:
        size = box.size * types[name].itemsize
        chunk = data[start : start + size].copy()
        yield name, box, torch.from_numpy(chunk).view(types[name])
        start += size


def _fill(pieces: Sequence[Piece], box: Box, data: Tensor, tensors: Mapping[str, Tensor]) -> None:
    from rlframe.storage import local_view

    for piece in pieces:
        common = piece.box.intersect(box)
        if common is not None:
            view = local_view(piece, tensors[piece.view.key])
            view[common.slices(piece.box)] = data[common.slices(box)]

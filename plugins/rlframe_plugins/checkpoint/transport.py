"""Weights to rollout engines in pools of their own: staged, checked, then flipped at once."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rlframe.config import check_range
from rlframe.errors import ConfigError, SyncError, WorkerError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.interfaces.checkpoint import CheckpointEngine, SyncStats
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.layout import Layout, Plan

__all__ = ["TransportCheckpoint"]

_DEATH_S = 15.0
"""How long a replica's death may take to be known after trainers saw its connection close."""


class TransportCheckpoint(CheckpointEngine):
    """Version N reaches every replica whole or not at all.

    Every trainer's rank stages what the plan takes from it, every replica fetches and checks; only
    then do all replicas flip. Where a part is missing or damaged the old version goes on serving
    and ``SyncError`` says which.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of weight sync between pools."""

        transport: str = "shm"
        """How bytes move: shm (one machine), disk, collective, or a plugin's."""
        codec: str = "full"
        """How a bucket is written by shm and disk: full, delta, or a plugin's."""
        directory: str = ""
        """Folder for ``disk``, seen by every node under the same path."""
        bucket_mib: int = 256
        """Most bytes staged in one piece, MiB, at least 1."""
        timeout_s: float = 300.0
        """Longest wait for a rank in an exchange, seconds, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "bucket_mib", 1)
            check_range(self, "timeout_s", above=0)

    def layouts(self, source: Layout, target: Layout) -> tuple[Layout, Layout]:
        """Trainers first, replicas after them."""
        return source.beside(after=target.world), target.beside(before=source.world)

    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """See :class:`CheckpointEngine`."""
        if plan.source.world != sources.mesh.size + targets.mesh.size:
            raise ConfigError("checkpoint 'transport' plans over trainers and replicas together")
        transport = resolve(current_host(), "transport", self.config.transport).value
        codec = resolve(current_host(), "codec", self.config.codec).value()
        self._transport = transport(self.config, codec)
        self._plan, self._sources, self._targets = plan, sources, targets
        answer = sources.call("listen_for_replicas", self._transport).result()
        self._transport.connect(answer)
        self._full = True

    def publish(self, version: int) -> SyncStats:
        """See :class:`CheckpointEngine`."""
        started = time.perf_counter()
        moved = self._move(version)
        self._targets.call("flip_weights", version).result()
        self._full = False
        return SyncStats(version, moved, time.perf_counter() - started)

    def close(self) -> None:
        """See :class:`CheckpointEngine`."""
        if hasattr(self, "_transport"):
            self._transport.close()

    def _move(self, version: int) -> int:
        """Stage and fetch; after any failure the next version needs no earlier one."""
        full, self._full = self._full, True
        staging = self._sources.call("stage_weights", self._transport, self._plan, version, full)
        receipts = [] if self._transport.together else staging.result()
        try:
            fetching = self._targets.call(
                "fetch_weights", self._transport, self._plan, version, receipts
            )
            if self._transport.together:
                _meet(staging, fetching)
            return int(sum(fetching.result()))
        finally:
            self._transport.discard(receipts)


def _meet(staging: Future[Any], fetching: Future[Any]) -> None:
    """Wait for the trainers; where their exchange broke because a replica died, raise that."""
    try:
        staging.result()
    except SyncError as seen:
        try:
            reason = fetching.exception(_DEATH_S)
        except TimeoutError:
            reason = None
        if isinstance(reason, WorkerError):
            raise reason from seen
        raise

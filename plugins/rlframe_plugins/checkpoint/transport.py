"""Weights to rollout engines in pools of their own: staged, checked, then flipped at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rlframe.config import check_range
from rlframe.errors import ConfigError, SyncError, WorkerError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.interfaces.checkpoint import CheckpointEngine, SyncStats, Transport
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.weights.adapters import Adapters
from rlframe.weights.layout import Layout, Plan
from rlframe_plugins.checkpoint.adapters import AdapterSync
from rlframe_plugins.checkpoint.verify import Verifier
from rlframe_plugins.resharders.planner import present

__all__ = ["TransportCheckpoint"]

_DEATH_S = 15.0
"""How long a replica's death may take to be known after trainers saw its connection close."""


class TransportCheckpoint(CheckpointEngine):
    """Version N reaches every replica whole or not at all.

    Every trainer's rank stages what the plan takes from it, every replica fetches and checks; only
    then do all replicas flip. Where a part is missing or damaged the old version goes on serving
    and ``SyncError`` says which. Adapters travel alone: replicas add them to a base that came once.
    A replica that is away is left out; where both sides meet, those that are there meet anew.
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
        keep_memory: bool = True
        """Keep staged memory (shm) and a replica's second storage for the next version, which then
        takes a third of the time; false gives both back after each."""
        retries: int = 1
        """How often a version that did not come whole is sent again, all of it, at least 0."""
        verify: int = 0
        """Compare weights after every this many versions, at least 0; 0 never does."""
        adapters_alone: bool = True
        """Where adapters are trained (model.lora) send them alone; false sends merged weights."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "bucket_mib", 1)
            check_range(self, "timeout_s", above=0)
            check_range(self, "retries", 0)
            check_range(self, "verify", 0)

    _adapters: Adapters | None = None
    _alone: AdapterSync | None = None

    @classmethod
    def lets_join(cls, config: Config) -> bool:
        """See :class:`CheckpointEngine`; where both sides meet, those that are there do."""
        return True

    def use_adapters(self, adapters: Adapters) -> None:
        """See :class:`CheckpointEngine`."""
        self._adapters = adapters

    def layouts(self, source: Layout, target: Layout) -> tuple[Layout, Layout]:
        """Trainers first, replicas after them."""
        return source.beside(after=target.world), target.beside(before=source.world)

    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """See :class:`CheckpointEngine`."""
        if plan.source.world != sources.mesh.size + targets.mesh.size:
            raise ConfigError("checkpoint 'transport' plans over trainers and replicas together")
        transport = resolve(current_host(), "transport", self.config.transport).value
        codec = resolve(current_host(), "codec", self.config.codec).value()
        self._transport: Transport = transport(self.config, codec)
        self._plan, self._sources, self._targets = plan, sources, targets
        first = sources.mesh.size
        self._verifier = Verifier(plan, sources, targets, first) if self.config.verify else None
        self._full, self._version, self._published = True, -1, 0
        self._absent: dict[Transport, frozenset[int]] = {}
        self._meet(self._transport)
        if self._adapters is not None and self.config.adapters_alone:
            low: Transport = transport(self.config, codec)
            self._meet(low)
            both = (self._transport, low)
            self._alone = AdapterSync(self._adapters, plan, both, sources, targets)

    def publish(self, version: int) -> SyncStats:
        """See :class:`CheckpointEngine`; a version that did not come whole is sent again.

        Deaths on the way are no retries: each leaves fewer to send to.
        """
        started, notes, left = time.perf_counter(), [], self.config.retries
        if self._targets.admit():
            self._full = True
            self._renew_all()
        while True:
            away = self._targets.away
            try:
                moved = self._move(version)
                break
            except SyncError as error:
                lost = len(self._targets.away - away)
                if not left and not lost:
                    raise
                left -= not lost
                among = f" without {lost} ranks that died" if lost else ""
                notes.append(f"{error}; it is sent again{among}")
        self._targets.call("flip_weights", version).result()
        self._full, self._version = False, version
        self._published += 1
        if self._verifier is not None and self._published % self.config.verify == 0:
            self._verifier.check(version)
        return SyncStats(version, moved, time.perf_counter() - started, notes=tuple(notes))

    def join(self) -> int:
        """See :class:`CheckpointEngine`; the trainers must still hold the current version."""
        if self._version < 0:
            raise SyncError(
                "no version was published yet: a replica gets the first with all others"
            )
        full = self._full
        self._targets.admit()
        self._renew_all()
        moved = self._move(self._version, late=True)
        self._targets.call("flip_weights", self._version, True).result()
        self._full = full
        return moved

    def close(self) -> None:
        """See :class:`CheckpointEngine`."""
        for transport in self._transports if hasattr(self, "_transport") else ():
            transport.close()

    @property
    def _transports(self) -> tuple[Transport, ...]:
        """One for weights, and one for adapters where these travel alone."""
        return (self._transport,) if self._alone is None else self._alone.transports

    def _meet(self, transport: Transport) -> None:
        """Have the first trainer listen, and remember where."""
        answer = self._sources.call("listen_for_replicas", transport).result()
        transport.connect(answer)

    def _renew_all(self) -> None:
        """Who is new has no connections: all meet again."""
        for transport in self._transports:
            self._renew(transport)

    def _renew(self, transport: Transport) -> None:
        if transport.together:
            transport.renew()
            self._meet(transport)

    def _move(self, version: int, *, late: bool = False) -> int:
        """Stage and fetch; after any failure the next version needs no earlier one."""
        full, self._full = self._full or late, True
        if self._alone is not None:
            return self._alone.move(version, self._exchange, full=full, late=late)
        stage = ("stage_weights", self._transport, self._plan, version, full)
        fetch = ("fetch_weights", self._transport, self._plan, version)
        return self._exchange(self._transport, stage, fetch, late)

    def _exchange(
        self, transport: Transport, stage: Sequence[Any], fetch: Sequence[Any], late: bool
    ) -> int:
        """Call both sides, replicas with the receipts of the trainers; bytes that moved.

        Where both meet, the plan is that of the replicas that are there.
        """
        if transport.together:
            away = self._targets.away
            if self._absent.setdefault(transport, frozenset()) != away:
                self._absent[transport] = away
                self._renew(transport)
            gone = frozenset(rank + self._sources.mesh.size for rank in away)
            stage, fetch = _among(stage, gone), _among(fetch, gone)
        staging = self._sources.call(*stage)
        receipts: Sequence[Any] = []
        try:
            receipts = [] if transport.together else staging.result()
            fetching = self._targets.call(*fetch, receipts, late)
            if transport.together:
                _both(staging, fetching)
            return int(sum(moved or 0 for moved in fetching.result()))
        except SyncError:
            self._renew(transport)
            raise
        finally:
            transport.discard(receipts)


def _among(call: Sequence[Any], gone: frozenset[int]) -> tuple[Any, ...]:
    """A call whose plan asks nothing of the ranks that are gone."""
    if not gone:
        return tuple(call)
    return tuple(present(part, gone) if isinstance(part, Plan) else part for part in call)


def _both(staging: Future[Any], fetching: Future[Any]) -> None:
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

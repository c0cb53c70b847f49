"""Controller and one worker in one process: a debugger stops anywhere, nothing else starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rlframe.batching.batch import Batch
from rlframe.calling.fan_out import collect, distribute
from rlframe.calling.protocol import Mesh
from rlframe.calling.worker import Worker
from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import WorkerError
from rlframe.interfaces.cluster import Cluster, ClusterInfo, Placement, WorkerGroup
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.interfaces.transfer import TransferEngine
from rlframe.timeline import ProcessSpans
from rlframe_plugins.clusters.watchdog import TooLate, Watchdog

__all__ = ["InlineCluster"]


class InlineCluster(Cluster):
    """One worker in this process."""

    @dataclass(frozen=True)
    class Config:
        """Options of the inline cluster."""

        threads: int = 0
        """Compute threads, at least 0; 0 leaves the library's default."""
        device: str = "auto"
        """auto, cpu or cuda; auto takes the GPU where there is one."""
        call_timeout_s: float = 3600.0
        """Longest call of an engine, seconds, at least 0; 0 never ends one."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "threads", 0)
            check_range(self, "call_timeout_s", 0)

    def info(self) -> ClusterInfo:
        """See :class:`Cluster`."""
        return ClusterInfo(nodes=1, devices_per_node=1, device=self._device())

    def start(
        self,
        placement: Placement,
        engines: Mapping[str, EngineSpec],
        rollout: RolloutSpec | None,
        config: FitConfig,
        transfer: TransferEngine,
    ) -> dict[str, WorkerGroup]:
        """See :class:`Cluster`."""
        transfer.start()
        rank = RankInfo(
            host=socket.gethostname(),
            device=self._device(),
            seed=config.seed,
            threads=self.config.threads,
        )
        self._watchdog = Watchdog(self.config.call_timeout_s)
        self._worker = Worker(rank, transfer)
        self._worker.start()
        groups: dict[str, WorkerGroup] = {}
        for role, spec in engines.items():
            self._worker.add_model(role, spec, config.role(role).engine)
            groups[role] = InlineGroup(role, self._worker, self._watchdog)
        if rollout is not None:
            self._worker.add_rollout("rollout", rollout, config.rollout)
            groups["rollout"] = InlineGroup("rollout", self._worker, self._watchdog)
        return groups

    def host(self, name: str, make: Callable[[], Any]) -> WorkerGroup:
        """See :class:`Cluster`."""
        self._worker.host(name, make)
        return InlineHosted(name, self._worker, self._watchdog)

    def spans(self) -> list[ProcessSpans]:
        """See :class:`Cluster`."""
        return [self._worker.spans.take()] if hasattr(self, "_worker") else []

    def close(self) -> None:
        """See :class:`Cluster`."""
        if hasattr(self, "_worker"):
            self._watchdog.close()
            self._worker.close()

    def _device(self) -> str:
        if self.config.device != "auto":
            return str(self.config.device)
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"


class InlineGroup(WorkerGroup):
    """A role of the only worker; a call is done when it returns."""

    def __init__(self, role: str, worker: Worker, watchdog: Watchdog) -> None:
        self.role, self.mesh, self._worker = role, Mesh(), worker
        self._watchdog = watchdog

    def call(self, method: str, *args: Any) -> Future[Any]:
        """See :class:`WorkerGroup`."""
        future: Future[Any] = Future()
        try:
            future.set_result(self._bounded(method, args))
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)
        return future

    def client(self) -> RolloutEngine:
        """See :class:`WorkerGroup`."""
        engine: RolloutEngine = self._worker.engines[self.role]
        return engine

    def _bounded(self, method: str, args: tuple[Any, ...]) -> Any:
        try:
            with self._watchdog.watch():
                return self._run(method, args)
        except TooLate as late:
            what = f"{method} is not done after {late.limit_s:g} s (cluster.call_timeout_s)"
            host = self._worker.rank.host
            raise WorkerError(self.role, 0, host, what, late.stacks) from late

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        rule = self._worker.protocol(self.role, method)
        shares = distribute(rule, self.mesh, args, width=self.width)
        results = {
            rank: self._worker.run(self.role, method, *map(self._through, share.args))
            for rank, share in enumerate(shares)
            if share is not None
        }
        return collect(rule, self.mesh, shares, results)

    def _through(self, value: Any) -> Any:
        """A batch as the worker reads it, not as the controller does."""
        return value.via(self._worker.transfer) if isinstance(value, Batch) else value


class InlineHosted(InlineGroup):
    """Any object held by the only worker."""

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        return self._worker.run(self.role, method, *args)

"""``cluster: ray``: pools on placement groups, a worker process a rank, one machine or many."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.config import Config as FitConfig
from rlframe.config import PoolConfig, check_range
from rlframe.errors import ConfigError
from rlframe.interfaces.cluster import (
    Cluster,
    ClusterInfo,
    Placement,
    ResourcePool,
    WorkerGroup,
)
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.transfer import TransferEngine
from rlframe_plugins.clusters.ray.nodes import (
    Need,
    Node,
    check_fit,
    read_nodes,
    wait_for_room,
)
from rlframe_plugins.clusters.ray.session import Session, worker_environment

if TYPE_CHECKING:
    from rlframe.timeline import ProcessSpans

__all__ = ["RayCluster"]


class RayCluster(Cluster):
    """Roles of a pool share a process per device and strategy; so does a rollout of that pool."""

    capabilities = frozenset({"processes"})

    @dataclass(frozen=True)
    class Config:
        """Options of the Ray cluster."""

        address: str = ""
        """Cluster to use: host:port, or auto; empty starts Ray on this machine for the run."""
        device: str = "auto"
        """auto, cpu or cuda; auto takes GPUs where there are any."""
        cpus: float = 0.25
        """CPUs that a device of a pool takes, above 0; without GPUs a device is nothing else."""
        logical_cpus: int = 0
        """CPUs that a local start offers, at least 0; 0 counts those of the machine."""
        threads: int = 1
        """Compute threads of a worker on the CPU, at least 1."""
        wait_s: float = 0.0
        """Longest wait for nodes that the pools fit on, seconds, at least 0."""
        start_timeout_s: float = 300.0
        """Longest start of the processes, and set-up of a role in them, seconds, above 0."""
        call_timeout_s: float = 3600.0
        """Longest call of a worker, seconds, at least 0; 0 never ends one."""
        collectors: int = 1
        """Processes that play episodes and score them, at least 1; prompts are dealt over them."""
        worker_output: bool = True
        """Show what workers print."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            if self.device not in ("auto", "cpu", "cuda"):
                raise ValueError(f"device must be auto, cpu or cuda, not {self.device!r}")
            for name in ("logical_cpus", "wait_s", "call_timeout_s"):
                check_range(self, name, 0)
            check_range(self, "threads", 1)
            check_range(self, "collectors", 1)
            check_range(self, "cpus", above=0)
            check_range(self, "start_timeout_s", above=0)

    config: RayCluster.Config

    def __init__(self, config: Any = None) -> None:
        super().__init__(config or RayCluster.Config())
        self._session: Session | None = None
        self._crews: Any = None
        self._spans: Any = None

    @property
    def collectors(self) -> int:
        """See :class:`Cluster`."""
        return self.config.collectors

    def info(self) -> ClusterInfo:
        """See :class:`Cluster`; a local start is not needed to know what it would offer."""
        import ray

        if not self.config.address and not ray.is_initialized():
            devices = self._local_devices()
            return ClusterInfo(1, devices, self._device(local=True), (devices,))
        self._open()
        by_node = tuple(node.devices for node in read_nodes(self._need()))
        return ClusterInfo(len(by_node), max(by_node, default=0), self._device(), by_node)

    def await_pools(self, pools: Mapping[str, PoolConfig]) -> None:
        """See :class:`Cluster`: with ``wait_s``, until all pools fit or the time is over."""
        if self.config.wait_s:
            self._open()
            asked = [ResourcePool(name, p.nodes, p.devices) for name, p in pools.items()]
            wait_for_room(asked, self._need(), self.config.wait_s)

    def check(self, placement: Placement) -> None:
        """See :class:`Cluster`: each part of a pool needs a node; Ray is not started for that."""
        import ray

        pools = list(placement.pools.values())
        if self.config.address or ray.is_initialized():
            self._open()
            wait_for_room(pools, self._need(), self.config.wait_s)
            return
        kind = "GPU" if self._device(local=True) == "cuda" else "CPU"
        devices = self._local_devices()
        here = Node("", socket.gethostname(), devices, devices)
        check_fit(pools, [here], Need(kind, self.config.cpus))

    def start(
        self,
        placement: Placement,
        engines: Mapping[str, EngineSpec],
        rollout: RolloutSpec | None,
        config: FitConfig,
        transfer: TransferEngine,
    ) -> dict[str, WorkerGroup]:
        """See :class:`Cluster`."""
        from rlframe_plugins.clusters.ray.launch import Crews

        self._open()
        nodes = wait_for_room(list(placement.pools.values()), self._need(), self.config.wait_s)
        need = self._need()
        self._crews = Crews(self.config, need, config, transfer, len(read_nodes(need)))
        self._crews.place(placement, nodes)
        transfer.start()
        groups: dict[str, WorkerGroup] = self._crews.start(placement, engines, rollout)
        return groups

    def host(self, name: str, make: Callable[[], Any]) -> WorkerGroup:
        """See :class:`Cluster`."""
        hosted: WorkerGroup = self._crews.host(name, make)
        return hosted

    def stacks(self) -> str:
        """See :class:`Cluster`."""
        from rlframe_plugins.clusters.ray.looking import stacks_of

        return stacks_of(self._crews.crews) if self._crews is not None else super().stacks()

    def spans(self) -> list[ProcessSpans]:
        """See :class:`Cluster`."""
        from rlframe_plugins.clusters.ray.looking import Spans

        if self._crews is None:
            return []
        self._spans = self._spans or Spans()
        found: list[ProcessSpans] = self._spans.of(self._crews.crews)
        return found

    def close(self) -> None:
        """See :class:`Cluster`."""
        try:
            if self._crews is not None:
                self._crews.close()
        finally:
            self._crews = None
            if self._session is not None:
                self._session.close()
                self._session = None

    def _open(self) -> None:
        if self._session is None:
            config = self.config
            self._session = Session(
                config.address,
                config.logical_cpus,
                config.worker_output,
                worker_environment(config.threads, one_node=True),
            )

    def _need(self) -> Need:
        return Need("GPU" if self._device() == "cuda" else "CPU", self.config.cpus)

    def _device(self, *, local: bool = False) -> str:
        if self.config.device != "auto":
            return str(self.config.device)
        if local:
            return "cuda" if _local_gpus() else "cpu"
        import ray

        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"

    def _local_devices(self) -> int:
        cpus = self.config.logical_cpus or os.cpu_count() or 1
        by_cpu = int(cpus / self.config.cpus + 1e-6)
        if self._device(local=True) == "cpu":
            return by_cpu
        if not _local_gpus():
            raise ConfigError("cluster.device=cuda: this machine has no GPU that torch can use")
        return min(_local_gpus(), by_cpu)


def _local_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0

"""Which processes exist on which devices, and calling them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlframe.batching.balance import WIDTH
from rlframe.calling.protocol import Mesh
from rlframe.recovery.stacks import all_stacks

if TYPE_CHECKING:
    from rlframe.config import Config, PoolConfig
    from rlframe.interfaces.model import EngineSpec
    from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
    from rlframe.interfaces.transfer import TransferEngine
    from rlframe.timeline import ProcessSpans

__all__ = ["Cluster", "ClusterInfo", "Mapper", "Placement", "ResourcePool", "WorkerGroup"]


@dataclass(frozen=True)
class ResourcePool:
    """Devices that roles share: ``nodes`` x ``devices`` of them, with parallel sizes a role."""

    name: str
    nodes: int = 1
    devices: int = 1

    @property
    def size(self) -> int:
        """Ranks of a group on this pool."""
        return self.nodes * self.devices


@dataclass(frozen=True)
class Placement:
    """Which role lives in which pool; the rollout is a role by the name "rollout"."""

    pools: Mapping[str, ResourcePool]
    pool_of: Mapping[str, str]
    mesh_of: Mapping[str, Mesh]


@dataclass(frozen=True)
class ClusterInfo:
    """What a cluster offers."""

    nodes: int
    devices_per_node: int
    """Of the node that has most."""
    device: str
    by_node: tuple[int, ...] = ()
    """Devices of each node, where nodes differ."""

    @property
    def size(self) -> int:
        """Devices of all nodes."""
        return sum(self.by_node) or self.nodes * self.devices_per_node


class WorkerGroup(ABC):
    """The workers of one role, called by the protocol that the engine's method declares."""

    role: str
    mesh: Mesh
    width: int = WIDTH
    """Hidden size of the role's model, by which rows are dealt; set when a run is built."""

    @abstractmethod
    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the role's engine on its ranks; returns at once.

        ``rlframe.calling.fan_out`` carries the protocol out: a "concat" rule cuts a ``Batch`` and
        gives ``[(handles by column, batch rows), ...]`` for ``Batch.add_handles``; a "list" rule
        gives one result a collected rank. Raises ``WorkerError`` from the future.
        """

    @abstractmethod
    def client(self) -> RolloutEngine:
        """For a rollout role: an object whose ``generate`` can be awaited here."""

    @property
    def away(self) -> frozenset[int]:
        """Ranks that are not called now: their process is gone, or waits for :meth:`admit`."""
        return frozenset()

    @property
    def arrived(self) -> bool:
        """Whether a worker that was started again waits to be called: see :meth:`admit`."""
        return False

    def admit(self) -> bool:
        """Call workers that were started again from now on, too; whether there are any.

        They have no weights. The answer of a worker that is away, in a list of all, is None.
        """
        return False

    def watch(self, lost: Callable[[str], object], ready: Callable[[str], object]) -> None:
        """Have a line told for each worker that is lost, and for each that was started again.

        Only where the group survives that. Both are called in threads that may wait.
        """

    def close(self) -> None:
        """End the group."""


class Cluster(ABC):
    """Starts and ends worker groups. The only place that sets rank, world, threads, devices."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """Of "processes": workers are processes of their own."""

    config: Any

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def info(self) -> ClusterInfo:
        """What there is to place on."""

    def check(self, placement: Placement) -> None:
        """Told the placement before anything large is loaded.

        Raises ConfigError where :meth:`start` could not carry it out.
        """

    @abstractmethod
    def start(
        self,
        placement: Placement,
        engines: Mapping[str, EngineSpec],
        rollout: RolloutSpec | None,
        config: Config,
        transfer: TransferEngine,
    ) -> dict[str, WorkerGroup]:
        """Start a group a role and set its engines up; "rollout" is there when asked for."""

    def await_pools(self, pools: Mapping[str, PoolConfig]) -> None:
        """Told what the config asks for before :meth:`info`; may wait until it is there."""

    @property
    def collectors(self) -> int:
        """Collectors that a run should have, at least 1; each is hosted by itself."""
        return 1

    @abstractmethod
    def host(self, name: str, make: Callable[[], Any]) -> WorkerGroup:
        """A group of one rank that holds what ``make()`` gives; its methods are called by name.

        Where a cluster has processes it lives in one of its own, so ``make`` is pickled. A method
        may return :class:`~rlframe.interfaces.transfer.Produced`. Only after :meth:`start`.
        """

    def stacks(self) -> str:
        """Python stacks of every worker, for a step that hangs; those of this process here."""
        return all_stacks()

    def spans(self) -> Sequence[ProcessSpans]:
        """What each worker did since this was called before, for the timeline.

        ``rank`` is that in its pool. Workers that do not answer are left out.
        """
        return ()

    def close(self) -> None:
        """End every process that was started."""


class Mapper(ABC):
    """Which role or rollout lives in which pool with which parallel sizes. Pure."""

    config: Any

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def place(self, roles: Sequence[str], config: Config, cluster: ClusterInfo) -> Placement:
        """Place every role. Raises ``ConfigError`` with what was asked and what there is."""

    def settle(
        self, roles: Sequence[str], config: Config, cluster: ClusterInfo
    ) -> tuple[Placement, Config]:
        """Place every role, and the config that the run goes on with.

        It is the one given, unless a mapper also chooses options such as parallel sizes.
        """
        return self.place(roles, config, cluster), config

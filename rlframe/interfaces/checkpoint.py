"""Weights from training layout to generation layout: the plan (pure) and its execution."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rlframe.interfaces.cluster import WorkerGroup
from rlframe.weights.layout import Layout, Plan
from rlframe.weights.sharding import Grouping

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.interfaces.strategy import RankInfo
    from rlframe.weights.adapters import Adapters

__all__ = [
    "AfterGeneration",
    "BaseWeights",
    "CheckpointEngine",
    "Codec",
    "FetchedWeights",
    "HandedOver",
    "Resharder",
    "SyncStats",
    "Transport",
]


AfterGeneration = Literal["keep", "cache", "offload", "release"]
"""What a rollout engine gives back while its devices train: nothing; its key-value cache; that, and
its weights to the host; that, and its weights for good until the next version."""


@dataclass(frozen=True)
class SyncStats:
    """What one publish cost: version, bytes received by all ranks, seconds.

    ``extra_bytes``: storage of weights beyond the larger of a rank's two layouts, over all ranks.
    ``redundant_bytes``: a rank's training weights outside its generation shard, the most of any.
    ``notes`` say what went wrong on the way, and what was done about it.
    """

    version: int
    bytes_moved: int
    seconds: float
    extra_bytes: int = 0
    redundant_bytes: int = 0
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, float]:
        """What the log shows of it."""
        return {
            "perf/sync_bytes": float(self.bytes_moved),
            "perf/sync_extra_bytes": float(self.extra_bytes),
            "perf/sync_redundant_bytes": float(self.redundant_bytes),
        }


@dataclass(frozen=True)
class HandedOver:
    """What one rank did in a hand-over: bytes received, bytes of storage beside the trainer's."""

    received: int = 0
    extra_bytes: int = 0


class Resharder(ABC):
    """From two layouts to who sends which box to whom. Pure: no process, no device."""

    grouping: ClassVar[Grouping] = "strided"
    """Which ranks of a training replica form a generation replica, where engines can choose."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def plan(self, source: Layout, target: Layout) -> Plan:
        """Every box that the target lacks, from one of its owners."""


class CheckpointEngine(ABC):
    """Executes a plan as weight version N: whole or not at all."""

    @classmethod
    def shares_storage(cls, config: Any) -> bool:
        """Whether the rollout may read what the trainer changes, so that they must take turns."""
        return False

    @classmethod
    def gives_room(cls, config: Any) -> bool:
        """Whether :meth:`phase` takes memory from the rollout, which then can serve no request."""
        return False

    @classmethod
    def lets_join(cls, config: Any) -> bool:
        """Whether replicas may be away in a publish and :meth:`join` later."""
        return False

    def layouts(self, source: Layout, target: Layout) -> tuple[Layout, Layout]:
        """Both layouts over the ranks that the plan speaks of; default: the same ranks."""
        return source, target

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def use_adapters(self, adapters: Adapters) -> None:
        """Told before :meth:`prepare` that the sources train adapters only; may be ignored."""

    @abstractmethod
    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """Check the plan and set up buffers, once."""

    @abstractmethod
    def publish(self, version: int) -> SyncStats:
        """Give the targets the sources' weights as ``version``."""

    def phase(self, phase: Literal["train", "generate"]) -> None:
        """What the next stage does; where both share devices one may make room for the other."""

    def join(self) -> int:
        """Bring replicas that started late to the current version; the bytes that they received.

        The others go on serving. Raises SyncError where there is no version yet.
        """
        raise NotImplementedError(f"{type(self).__name__} has no replicas of its own")

    def close(self) -> None:
        """Leave nothing behind."""


class Transport(ABC):
    """How bytes of a plan get from the ranks of one pool to those of another.

    Ranks are those of the plan: trainers first, replicas after them. An object travels to both
    sides with every call and must pickle; what lasts on a side is kept there by ``key``.
    """

    together: ClassVar[bool] = False
    """Whether both sides meet in the exchange, so that they are called at once."""

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.key, self.former = uuid.uuid4().hex, ""

    def listen(self, rank: RankInfo) -> Any:
        """On the first trainer, once: what the others need to know to reach it."""
        return None

    def connect(self, answer: Any) -> None:
        """On the controller: keep what :meth:`listen` gave, before any other call."""

    @abstractmethod
    def stage(
        self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor], *, full: bool
    ) -> Any:
        """On a trainer: offer what the plan takes from this rank; a receipt that pickles.

        ``full`` asks for data that needs no earlier version.
        """

    @abstractmethod
    def fetch(
        self, plan: Plan, rank: int, version: int, receipts: Sequence[Any], base: BaseWeights | None
    ) -> FetchedWeights:
        """On a replica: this rank's target, checked, in storage of its own.

        ``base`` is what serves now. Raises SyncError for missing or wrong data.
        """

    def discard(self, receipts: Sequence[Any]) -> None:
        """On the controller: forget a staged version; receipts of no use are ignored."""

    def renew(self) -> None:
        """On the controller: forget connections, after a failure or when a replica is new.

        ``former`` is the key under which sides may still hold something.
        """
        self.former, self.key = self.key, uuid.uuid4().hex

    def close(self) -> None:
        """On the controller: leave nothing behind."""


class Codec(ABC):
    """How the elements of a bucket are written; works on their bits and loses none.

    Elements are unsigned integers of their own width (n,), in the order of the bucket.
    """

    plain: ClassVar[bool] = False
    """Whether elements stay as they are, so that nothing need be asked."""
    needs_base: ClassVar[bool] = False
    """Whether both sides must have the same earlier version."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def encode(self, elements: NDArray[Any], base: NDArray[Any] | None) -> bytes | None:
        """The data; None where the plain elements are smaller."""

    @abstractmethod
    def decode(self, data: NDArray[np.uint8], base: NDArray[Any]) -> NDArray[Any]:
        """The elements, new storage. Raises SyncError for data that cannot be right.

        Without ``needs_base`` only type and length of ``base`` (n,) mean something.
        """


@dataclass(frozen=True)
class BaseWeights:
    """What a replica serves: version and tensors by name."""

    version: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class FetchedWeights:
    """A replica's tensors by name, and the bytes that came over the wire for them."""

    tensors: Mapping[str, Tensor]
    nbytes: int

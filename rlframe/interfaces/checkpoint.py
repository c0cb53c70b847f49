"""Weights from training layout to generation layout: the plan (pure) and its execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.interfaces.cluster import WorkerGroup
from rlframe.layout import Layout, Plan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CheckpointEngine",
    "FetchedWeights",
    "HandedOver",
    "Resharder",
    "SyncStats",
    "Transport",
]


@dataclass(frozen=True)
class SyncStats:
    """What one publish cost: version, bytes received by all ranks, seconds, bytes on top."""

    version: int
    bytes_moved: int
    seconds: float
    extra_bytes: int = 0


@dataclass(frozen=True)
class HandedOver:
    """What one rank did in a hand-over: bytes received, bytes of storage beside the trainer's."""

    received: int = 0
    extra_bytes: int = 0


class Resharder(ABC):
    """From two layouts to who sends which box to whom. Pure: no process, no device."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def plan(self, source: Layout, target: Layout) -> Plan:
        """Every box that the target lacks, from one of its owners."""


class CheckpointEngine(ABC):
    """Executes a plan as weight version N: whole or not at all."""

    def layouts(self, source: Layout, target: Layout) -> tuple[Layout, Layout]:
        """Both layouts over the ranks that the plan speaks of; default: the same ranks."""
        return source, target

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """Check the plan and set up buffers, once."""

    @abstractmethod
    def publish(self, version: int) -> SyncStats:
        """Give the targets the sources' weights as ``version``."""

    def join(self, replica: str) -> None:
        """Bring a late replica to the current version."""
        raise NotImplementedError(f"{type(self).__name__} has no replicas")


class Transport(ABC):
    """How bytes of a plan get from the ranks of one pool to those of another.

    Ranks are those of the plan: trainers first, replicas after them. An object travels to both
    sides and must pickle.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def stage(self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor]) -> Any:
        """On a trainer: offer what the plan takes from this rank; a receipt that pickles."""

    @abstractmethod
    def fetch(self, plan: Plan, rank: int, version: int, receipts: Sequence[Any]) -> FetchedWeights:
        """On a replica: this rank's target, checked. Raises SyncError for missing or wrong data."""

    def discard(self, receipts: Sequence[Any]) -> None:
        """On the controller: forget a staged version; receipts of no use are ignored."""


@dataclass(frozen=True)
class FetchedWeights:
    """A replica's tensors by name, and the bytes that came over the wire for them."""

    tensors: Mapping[str, Tensor]
    nbytes: int

"""Weights from training layout to generation layout: the plan (pure) and its execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from rlframe.interfaces.cluster import WorkerGroup
from rlframe.layout import Layout, Plan

__all__ = ["CheckpointEngine", "Resharder", "SyncStats"]


@dataclass(frozen=True)
class SyncStats:
    """What one publish cost: version, bytes received by all ranks, seconds, bytes on top."""

    version: int
    bytes_moved: int
    seconds: float
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

"""Trainer and rollout on the same devices: weights change hands without leaving the worker."""

from __future__ import annotations

import time

from rlframe.errors import ConfigError
from rlframe.interfaces.checkpoint import CheckpointEngine, SyncStats
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.layout import Plan

__all__ = ["HybridCheckpoint"]


class HybridCheckpoint(CheckpointEngine):
    """Where both layouts are equal the rollout engine reads the trainer's own storage.

    Layouts that differ are refused with ``ConfigError``.
    """

    _sources: WorkerGroup
    _target: str

    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """See :class:`CheckpointEngine`."""
        if not plan.source.same_boxes(plan.target):
            raise ConfigError(
                "checkpoint 'hybrid' needs equal layouts in training and generation, but "
                f"role '{sources.role}' is spread over {plan.source.world} ranks: use one device "
                "for the pool, or strategy=single"
            )
        self._sources, self._target = sources, targets.role

    def publish(self, version: int) -> SyncStats:
        """See :class:`CheckpointEngine`."""
        started = time.perf_counter()
        moved = self._sources.call("hand_over", self._target, version).result()
        return SyncStats(version, sum(moved), time.perf_counter() - started)

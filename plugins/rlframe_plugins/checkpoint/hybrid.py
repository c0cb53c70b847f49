"""Trainer and rollout on the same devices: weights change hands without leaving the workers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rlframe.config import check_range
from rlframe.errors import ConfigError
from rlframe.interfaces.checkpoint import CheckpointEngine, SyncStats
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.layout import Plan

__all__ = ["HybridCheckpoint"]


class HybridCheckpoint(CheckpointEngine):
    """Where both layouts are equal the rollout engine reads the trainer's own storage.

    Elsewhere a second buffer is filled by the plan: one collective a bucket in each set of ranks
    that exchange (HybridFlow's micro-DP groups).
    """

    @dataclass(frozen=True)
    class Config:
        """Options of weights on the same devices."""

        copy: bool = False
        """Keep a second buffer where layouts are equal too, so that both sides run at once."""
        bucket_mib: int = 64
        """Most bytes that a rank receives in one collective, MiB, at least 1."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "bucket_mib", 1)

    @classmethod
    def shares_storage(cls, config: HybridCheckpoint.Config) -> bool:
        """See :class:`CheckpointEngine`."""
        return not config.copy

    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """See :class:`CheckpointEngine`."""
        if plan.source.world != plan.target.world:
            raise ConfigError(
                f"checkpoint 'hybrid' needs trainer and rollout in one pool, but role "
                f"'{sources.role}' has {plan.source.world} ranks and '{targets.role}' "
                f"{plan.target.world}: use checkpoint=transport, or the same pool"
            )
        self._sources, self._target = sources, targets.role
        copy, bucket = self.config.copy, self.config.bucket_mib
        sources.call("prepare_hand_over", self._target, plan, copy, bucket).result()

    def publish(self, version: int) -> SyncStats:
        """See :class:`CheckpointEngine`."""
        started = time.perf_counter()
        done = self._sources.call("hand_over", self._target, version).result()
        received = sum(one.received for one in done)
        extra = sum(one.extra_bytes for one in done)
        return SyncStats(version, received, time.perf_counter() - started, extra)

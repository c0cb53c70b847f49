"""Trainer and rollout on the same devices: weights change hands without leaving the workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

from rlframe.config import check_range
from rlframe.errors import ConfigError
from rlframe.interfaces.checkpoint import AfterGeneration, CheckpointEngine, SyncStats
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.weights.layout import Plan
from rlframe_plugins.checkpoint.verify import Verifier
from rlframe_plugins.resharders.measure import held_bytes, outside_bytes

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
        verify: int = 0
        """Compare weights after every this many versions, at least 0; 0 never does."""
        after_generation: AfterGeneration = "keep"
        """keep all; give back the rollout's cache; offload or release its weights as well."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "bucket_mib", 1)
            check_range(self, "verify", 0)
            if self.after_generation not in get_args(AfterGeneration):
                known = ", ".join(get_args(AfterGeneration))
                raise ValueError(f"after_generation must be one of {known}")
            if self.copy and self.after_generation != "keep":
                raise ValueError(
                    "copy=true is for generating while training: use after_generation=keep with it"
                )

    @classmethod
    def shares_storage(cls, config: HybridCheckpoint.Config) -> bool:
        """See :class:`CheckpointEngine`."""
        return not config.copy

    @classmethod
    def gives_room(cls, config: HybridCheckpoint.Config) -> bool:
        """See :class:`CheckpointEngine`."""
        return config.after_generation != "keep"

    def prepare(self, plan: Plan, sources: WorkerGroup, targets: WorkerGroup) -> None:
        """See :class:`CheckpointEngine`."""
        if plan.source.world != plan.target.world:
            raise ConfigError(
                f"checkpoint 'hybrid' needs trainer and rollout in one pool, but role "
                f"'{sources.role}' has {plan.source.world} ranks and '{targets.role}' "
                f"{plan.target.world}: use checkpoint=transport, or the same pool"
            )
        self._sources, self._target = sources, targets.role
        config = self.config
        options = (config.copy, config.bucket_mib, config.after_generation)
        sources.call("prepare_hand_over", self._target, plan, *options).result()
        self._verifier = Verifier(plan, sources, targets) if config.verify else None
        self._published = 0
        ranks = range(plan.source.world)
        self._trained = [held_bytes(plan.source, rank) for rank in ranks]
        self._generated = [held_bytes(plan.target, rank) for rank in ranks]
        self._redundant = max(outside_bytes(plan.source, plan.target, rank) for rank in ranks)

    def publish(self, version: int) -> SyncStats:
        """See :class:`CheckpointEngine`."""
        started = time.perf_counter()
        done = self._sources.call("hand_over", self._target, version).result()
        received = sum(one.received for one in done)
        extra = sum(
            max(one.extra_bytes - max(generated - trained, 0), 0)
            for one, trained, generated in zip(done, self._trained, self._generated, strict=True)
        )
        self._published += 1
        if self._verifier is not None and self._published % self.config.verify == 0:
            self._verifier.check(version)
        seconds = time.perf_counter() - started
        return SyncStats(version, received, seconds, extra, self._redundant)

    def phase(self, phase: Literal["train", "generate"]) -> None:
        """See :class:`CheckpointEngine`."""
        if self.config.after_generation != "keep":
            self._sources.call("phase", phase).result()

"""One stage after the other: every token is sampled from the weights that it trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlframe.interfaces.loop import Metrics, Scheduler

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["SyncScheduler"]


class SyncScheduler(Scheduler):
    """Collect, learn, publish, in turn."""

    def run(self, orchestrator: Orchestrator) -> Iterator[Metrics]:
        """One item a step."""
        while not orchestrator.done:
            batch = orchestrator.collect()
            metrics = orchestrator.learn(batch)
            orchestrator.publish("keep" if len(orchestrator.intake) else "none")
            yield metrics

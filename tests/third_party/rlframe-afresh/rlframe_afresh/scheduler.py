"""Generate for several steps at once, then take them one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe.config import check_range
from rlframe.interfaces.loop import Metrics, Scheduler

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["Bursts"]


class Bursts(Scheduler):
    """For engines that are dear to wake: the last step of a burst is ``steps - 1`` versions old.

    What was generated ahead waits in the buffer, which snapshots keep.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of ``scheduler: bursts``."""

        steps: int = 2
        """Steps that are generated at once, at least 1."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "steps", 1)

    config: Config

    def run(self, orchestrator: Orchestrator) -> Iterator[Metrics]:
        """One item a step."""
        run, count = orchestrator, orchestrator.config.data.prompts_per_step
        while not run.done:
            batch = run.collect()
            if not len(run.buffer):
                ahead = min(self.config.steps, run.steps_left) - 1
                with run.clock.stage("gen"):
                    run.intake.fill(count * ahead)
            metrics = run.learn(batch)
            run.publish()
            yield metrics

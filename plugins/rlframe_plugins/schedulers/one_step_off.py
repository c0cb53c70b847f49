"""The next rollout overlaps this update: every batch but the first is one version old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlframe.config import check_range
from rlframe.interfaces.loop import Metrics, Scheduler
from rlframe.orchestrator import Orchestrator

__all__ = ["OneStepOffScheduler"]


class OneStepOffScheduler(Scheduler):
    """Groups of the next step are played while the policy learns.

    Publishing waits for them, so that new weights never change a rollout that runs.
    """

    overlaps = True

    @dataclass(frozen=True)
    class Config:
        """Options of ``scheduler: one-step-off``."""

        wait_s: float = 3600.0
        """Longest wait for a group that is played, seconds, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "wait_s", above=0)

    config: OneStepOffScheduler.Config

    def run(self, orchestrator: Orchestrator) -> Iterator[Metrics]:
        """One item a step."""
        run, limit = orchestrator, self.config.wait_s
        intake, buffer, count = run.intake, run.buffer, run.config.data.prompts_per_step
        intake.start(count - len(buffer), run.version)
        while not run.done:
            with run.clock.stage("gen"):
                while len(buffer) < count:
                    intake.start(count - len(buffer) - len(intake), run.version)
                    intake.receive(len(intake), run.version, count, limit)
            batch = run.join(buffer.take(count, run.version))
            if run.steps_left > 1:
                intake.start(count - len(buffer) - len(intake), run.version)
            metrics = run.learn(batch)
            with run.clock.stage("gen"):
                while len(intake):
                    intake.receive(len(intake), run.version, count, limit)
            run.publish()
            yield metrics

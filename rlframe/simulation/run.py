"""A run of a scheduler on simulated engines: real order of stages, virtual seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from rlframe.batching.ledger import Ledger
from rlframe.collecting.buffer import Buffer
from rlframe.collecting.entry import GroupEntry
from rlframe.collecting.gathering import Gathering
from rlframe.collecting.intake import Intake
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.loop import Scheduler, Tail
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.orchestrator import Orchestrator
from rlframe.simulation.engine import SimEngine
from rlframe.simulation.player import SimPlayer, SimPrompts, SimSpec
from rlframe.weights.publishing import Running

__all__ = ["SimReport", "SimRun"]


@dataclass
class SimReport:
    """What came of it. ``ages``: versions between sampling and learning, one a group."""

    seconds: float = 0.0
    tokens: int = 0
    """Response tokens that were learned from."""
    wasted_tokens: int = 0
    """Sampled and never learned from."""
    ages: list[int] = field(default_factory=list)
    learned: list[list[int]] = field(default_factory=list)
    """Ids of the groups of each step."""
    train_busy: float = 0.0
    """Share of the time in which the trainer worked."""
    rollout_busy: float = 0.0
    """Share of the time in which a replica worked, mean over replicas."""
    step_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Learned response tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield


class _Replicas:
    """The rollout as a group of workers, of which only stopping is asked."""

    def __init__(self, player: SimPlayer) -> None:
        self._player = player

    def call(self, method: str, *args: Any) -> Future[None]:
        assert method == "pause", method
        self._player.paused = True
        done: Future[None] = Future()
        done.set_result(None)
        return done


class SimRun:
    """Has what a Scheduler uses of an :class:`Orchestrator`; its player and stages are simulated.

    The scheduler's calls move virtual time: learning and publishing take theirs while sequences
    are decoded, waiting jumps to the next that ends.
    """

    def __init__(self, spec: SimSpec, tail: Tail | None = None) -> None:
        tail = tail or Tail()
        self.spec = spec
        self.step = self.version = 0
        self.buffer, self.clock = Buffer(), _Clock()
        self.ledger = Ledger(LocalTransfer())
        self.config = SimpleNamespace(
            steps=spec.steps, data=SimpleNamespace(prompts_per_step=spec.prompts_per_step)
        )
        self.engine = SimEngine(
            spec.replicas, spec.slots, lambda n: spec.token_s + spec.sequence_s * n
        )
        self.report = SimReport()
        self.player = SimPlayer(spec, self.engine, tail)
        self._trained_s = 0.0
        self.intake = Intake(
            SimPrompts(),
            self.player,
            self.buffer,
            max_refills=spec.max_refills,
            method="Simulated",
            tell=lambda text: None,
        )
        rollout = cast(WorkerGroup, _Replicas(self.player))
        self._gathering = Gathering(self.intake, self.buffer, tail, rollout)

    # --- what a scheduler sees ----------------------------------------------------------------

    @property
    def takes_turns(self) -> bool:
        """See :class:`Orchestrator`."""
        return self.spec.turns

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.step >= self.spec.steps

    @property
    def steps_left(self) -> int:
        """Steps that are still to be taken, one that runs included."""
        return max(self.spec.steps - self.step, 0)

    def collect(self, count: int | None = None) -> Any:
        """See :meth:`Orchestrator.collect`."""
        wanted = count or self.spec.prompts_per_step
        return self.join(self._gathering.take(wanted, self.version, self.steps_left))

    def join(self, groups: Sequence[GroupEntry]) -> Any:
        """Note what is learned from."""
        self.intake.forget(entry.group_id for entry in groups)
        self.report.ages += [self.version - entry.oldest_version for entry in groups]
        self.report.learned.append(sorted(entry.group_id for entry in groups))
        tokens = sum(episode.length for entry in groups for episode in entry.episodes)
        self.report.tokens += tokens
        return tokens

    def learn(self, batch: int) -> dict[str, float]:
        """Spend the time of an update."""
        seconds = self.spec.train_s + self.spec.train_token_s * batch
        self._trained_s += seconds
        self.player.let_pass(seconds)
        return {}

    def hold(self, running: Running) -> None:
        """Nothing is decoded until the next publish."""
        self.player.paused = True

    def publish(self, running: Running = "none") -> None:
        """Spend the time of a sync, in which nothing is decoded, and count the version."""
        self.engine.skip(self.spec.sync_s)
        self.version += 1
        self.engine.version = self.version
        self.engine.restart_running()
        self.player.paused = False

    def simulate(self, scheduler: Scheduler) -> SimReport:
        """Run to the end."""
        before = 0.0
        for _ in scheduler.run(cast(Orchestrator, self)):
            self.step += 1
            self.report.step_s.append(self.engine.now - before)
            before = self.engine.now
        report, total = self.report, self.engine.now
        report.seconds = total
        report.wasted_tokens = self.engine.tokens - report.tokens
        report.train_busy = self._trained_s / total if total else 0.0
        report.rollout_busy = self.engine.busy_s / (total * self.spec.replicas) if total else 0.0
        return report

"""A bounded stream of groups: rollouts and updates go on side by side, never too far apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rlframe.collecting.entry import GroupEntry
from rlframe.collecting.staleness import admissible, due
from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import ConfigError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.interfaces.loop import Metrics, Sampler, Scheduler
from rlframe.orchestrator import Orchestrator
from rlframe.weights.publishing import Running

__all__ = ["AsyncScheduler"]


class AsyncScheduler(Scheduler):
    """Fully asynchronous, with a bound on staleness (AReaL, arXiv 2505.24298).

    A group that weights of version v began is learned from at version v + ``staleness`` at the
    latest; no more are started than can be used by then. With ``staleness`` 0 this is ``sync``.
    Where trainer and rollout share storage they take turns: generations stop before an update and
    go on after its publish, or with ``drain`` are waited for before the update.
    """

    overlaps = True

    @dataclass(frozen=True)
    class Config:
        """Options of ``scheduler: async``."""

        staleness: int = 1
        """Versions that a token may be older than the weights that learn from it, at least 0."""
        on_update: Literal["in-flight", "abort", "drain"] = "in-flight"
        """What new weights do to generations that run: in-flight swaps between two tokens, abort
        ends them and continues with the new weights, drain waits for them."""
        sampler: str = "in-order"
        """Which waiting groups a step takes, of those that need not be taken now: in-order,
        freshest, windowed, or a plugin's."""
        wait_s: float = 3600.0
        """Longest wait for a group that is played, seconds, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "staleness", 0)
            check_range(self, "wait_s", above=0)

    config: AsyncScheduler.Config

    @classmethod
    def takes_turns(cls, config: AsyncScheduler.Config) -> bool:
        """See :class:`Scheduler`."""
        return True

    @staticmethod
    def validate(config: FitConfig) -> None:
        """Check the sampler's name, and that the rollout engine can do what ``on_update`` asks."""
        options = config.scheduler.config
        resolve(current_host(), "sampler", options.sampler)
        needs = {"in-flight": {"pause", "in-flight"}, "abort": {"pause"}, "drain": set()}
        missing = needs[options.on_update] - set(config.rollout.load().capabilities)
        if missing and options.staleness:
            raise ConfigError(
                f"scheduler.on_update={options.on_update}: rollout '{config.rollout.name}' cannot "
                "be stopped between two tokens: set scheduler.on_update=drain"
            )
        checkpoint = config.checkpoint
        gives_room = checkpoint.load().gives_room(checkpoint.config)
        if gives_room and options.on_update != "drain" and options.staleness:
            raise ConfigError(
                f"scheduler.on_update={options.on_update}: generations that go on after an update "
                f"need the memory that checkpoint '{checkpoint.name}' takes from the rollout: set "
                "scheduler.on_update=drain or checkpoint.after_generation=keep"
            )

    def run(self, orchestrator: Orchestrator) -> Iterator[Metrics]:
        """One item a step."""
        run, options = orchestrator, self.config
        intake, count = run.intake, run.config.data.prompts_per_step
        sampler: Sampler = resolve(current_host(), "sampler", options.sampler).value()
        while not run.done:
            with run.clock.stage("gen"):
                groups = self._wait(run, sampler, count)
            batch = run.join(groups)
            way: Running = "abort" if options.on_update == "abort" else "keep"
            if not run.takes_turns:
                self._admit(run, count, taken=True)
            elif options.on_update == "drain":
                self._drain(run, count)
            elif len(intake):
                run.hold(way)
            metrics = run.learn(batch)
            if options.on_update == "drain":
                self._drain(run, count)
            intake.receive(0, run.version, count, options.wait_s)
            run.publish(way if len(intake) else "none")
            yield {**metrics, **self._figures(run)}

    def _drain(self, run: Orchestrator, count: int) -> None:
        """Wait for everything that is played."""
        with run.clock.stage("gen"):
            while len(run.intake):
                run.intake.receive(len(run.intake), run.version, count, self.config.wait_s)

    def _admit(self, run: Orchestrator, count: int, *, taken: bool) -> None:
        """Start what may be started; ``taken``: this step has its groups already."""
        unused = len(run.intake) + len(run.buffer) + (count if taken else 0)
        allowed = admissible(self.config.staleness, count, unused, run.steps_left)
        run.intake.start(allowed, run.version)

    def _wait(self, run: Orchestrator, sampler: Sampler, count: int) -> list[GroupEntry]:
        """The groups of this step: those that cannot wait, then the sampler's choice."""
        buffer, intake = run.buffer, run.intake
        oldest = run.version - self.config.staleness
        for late in buffer.drop(lambda entry: intake.born_of(entry, run.version) < oldest):
            run.ledger.done(late.batch)
        self._admit(run, count, taken=False)
        while (wanted := self._choose(run, sampler, count)) is None:
            missing = max(count - len(buffer), 1)
            intake.receive(missing, run.version, count, self.config.wait_s)
            self._admit(run, count, taken=False)
        return buffer.drop(lambda entry: entry.group_id in wanted)

    def _choose(self, run: Orchestrator, sampler: Sampler, count: int) -> set[int] | None:
        """Ids of the groups of this step; None: wait for more."""
        intake, version = run.intake, run.version
        waiting = sorted(run.buffer, key=lambda entry: entry.group_id)
        if len(waiting) < count:
            return None
        must = due(
            [intake.born[group] for group in intake.played],
            [intake.born_of(entry, version) for entry in waiting],
            version=version,
            bound=self.config.staleness,
            count=count,
        )
        if must is None:
            return None
        first = {waiting[i].group_id for i in must[:count]}
        rest = [entry for entry in waiting if entry.group_id not in first]
        missing = count - len(first)
        chosen = sampler.choose(rest, missing, version, intake.played)[:missing]
        if len(chosen) < missing and len(intake):
            return None
        wanted = first | {rest[i].group_id for i in chosen}
        spare = (entry.group_id for entry in rest if entry.group_id not in wanted)
        return wanted | set(list(spare)[: count - len(wanted)])

    def _figures(self, run: Orchestrator) -> dict[str, float]:
        return {
            "collect/open_groups": float(len(run.intake)),
            "collect/waiting_groups": float(len(run.buffer)),
        }

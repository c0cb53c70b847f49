"""What every scheduler must do. Subclass :class:`SchedulerKit` and name yours.

Example::

    class TestMine(SchedulerKit):
        scheduler = "mine"
        options = {"depth": 2}
        bound = 2
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from rlframe.config import Selected
from rlframe.config.load import Asked, load_config
from rlframe.host.host import PluginHost
from rlframe.interfaces.loop import Scheduler
from rlframe.simulation import SimReport, SimRun, SimSpec

__all__ = ["SchedulerKit", "random_spec"]

_RUNS = 12


def random_spec(seed: int) -> SimSpec:
    """Sizes and speeds by chance: queues longer than the run, one slot, failures, refusals."""
    chance = random.Random(seed)
    heavy = chance.random() < 0.5

    def length(source: random.Random) -> int:
        return 1 + int(source.expovariate(1 / 20) if heavy else source.randrange(30))

    return SimSpec(
        steps=chance.choice([1, 2, 3, 7]),
        prompts_per_step=chance.choice([1, 2, 5]),
        samples=chance.choice([1, 3]),
        length=length,
        replicas=chance.choice([1, 2, 3]),
        slots=chance.choice([1, 4, 64]),
        token_s=0.01,
        sequence_s=chance.choice([0.0, 0.001]),
        train_s=chance.choice([0.0, 0.1, 5.0]),
        sync_s=chance.choice([0.0, 0.2]),
        accept=chance.choice([1.0, 1.0, 0.5]),
        fail_every_s=chance.choice([0.0, 0.0, 1.0]),
        repair_s=0.5,
        seed=seed,
    )


def _made(name: str, options: tuple[tuple[str, Any], ...]) -> Scheduler:
    selected = _selected(name, options)
    scheduler: Scheduler = selected.load()(selected.config)
    return scheduler


@cache
def _selected(name: str, options: tuple[tuple[str, Any], ...]) -> Selected:
    values = {
        "scheduler": {"name": name, **dict(options)},
        "checkpoint": {"name": "hybrid", "copy": True},
    }
    return load_config(PluginHost().load(), Asked(values=values)).config.scheduler


class SchedulerKit:
    """Tests of one scheduler on simulated engines in virtual time, and of what it yields.

    ``bound`` is the most versions that what it learns from may be old; ``idle_share`` the most
    time beside the slower of generation and training that a well-fed run may take. One that claims
    ``takes_turns`` is also run where trainer and rollout share their devices.
    """

    scheduler: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    bound: ClassVar[int] = 0
    idle_share: ClassVar[float | None] = None

    def make(self) -> Scheduler:
        """The scheduler, from its name and options."""
        return _made(self.scheduler, tuple(sorted(self.options.items())))

    def runs(self) -> list[tuple[SimSpec, SimReport]]:
        """Many runs of random sizes, each to its end."""
        specs = [random_spec(seed) for seed in range(_RUNS)]
        scheduler = self.make()
        if scheduler.takes_turns(scheduler.config):
            specs += [dataclasses.replace(spec, turns=True) for spec in specs]
        return [(spec, SimRun(spec).simulate(self.make())) for spec in specs]

    # --- what is checked ----------------------------------------------------------------------

    def test_every_step_is_taken_with_its_groups(self) -> None:
        """So many steps of so many groups, whatever the sizes; none waits for ever."""
        for spec, report in self.runs():
            sizes = [len(groups) for groups in report.learned]
            assert sizes == [spec.prompts_per_step] * spec.steps, spec

    def test_a_group_is_learned_from_once(self) -> None:
        """No group twice."""
        for spec, report in self.runs():
            learned = [group for groups in report.learned for group in groups]
            assert len(learned) == len(set(learned)), spec

    def test_staleness_stays_in_its_bound(self) -> None:
        """No group is older than the bound when it is learned from, nor of the future."""
        for spec, report in self.runs():
            assert all(0 <= age <= self.bound for age in report.ages), (spec, report.ages)

    def test_no_more_is_started_than_can_be_used(self) -> None:
        """Where nothing is refused and no replica fails, every sampled token is learned from."""
        for spec, report in self.runs():
            if spec.accept == 1.0 and not spec.fail_every_s:
                assert report.wasted_tokens == 0, spec

    def test_the_same_run_twice_is_the_same(self) -> None:
        """Order depends on nothing but the run."""
        for seed in range(5):
            first, second = (SimRun(random_spec(seed)).simulate(self.make()) for _ in range(2))
            assert first == second

    def test_nothing_is_decoded_beside_an_update_where_they_take_turns(self) -> None:
        """The busy shares of trainer and each replica leave room for the other."""
        scheduler = self.make()
        if not scheduler.takes_turns(scheduler.config):
            return
        for seed in range(_RUNS):
            spec = dataclasses.replace(random_spec(seed), turns=True, replicas=1, train_s=1.0)
            report = SimRun(spec).simulate(self.make())
            assert report.train_busy + report.rollout_busy <= 1 + 1e-9, spec

    def test_generation_and_training_overlap(self) -> None:
        """Against the slower of the two, where lengths are even and both take as long."""
        if self.idle_share is None:
            return
        even = SimSpec(
            steps=200,
            prompts_per_step=8,
            samples=4,
            length=lambda source: 100,
            slots=32,
            token_s=0.01,
            train_s=1.0,
        )
        report = SimRun(even).simulate(self.make())
        slower = 200 * max(1.0, 100 * 0.01)
        assert report.seconds <= slower / (1 - self.idle_share), report.seconds

"""The staleness bound, by brute force and in virtual time."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.collecting.staleness import admissible, due
from rlframe.simulation import SimRun, SimSpec
from rlframe_plugins.schedulers.one_step_off import OneStepOffScheduler
from rlframe_plugins.schedulers.stream import AsyncScheduler
from rlframe_plugins.schedulers.sync import SyncScheduler


def feasible(births: list[int], version: int, bound: int, count: int) -> bool:
    """Whether steps of ``count`` groups from ``version`` on can take all in time, one by one."""
    left = sorted(birth + bound for birth in births)
    while left:
        if left[0] < version:
            return False
        left, version = left[count:], version + 1
    return True


births = st.lists(st.integers(0, 3), max_size=6)


@given(births, births, st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=400, deadline=None)
def test_due_is_the_least_that_keeps_the_rest_in_time(played, waiting, bound, count):
    version = 3
    played = [b for b in played if b + bound >= version]
    waiting = [b for b in waiting if b + bound >= version]
    rest_can = any(
        feasible(played + [w for i, w in enumerate(waiting) if i not in taken], 4, bound, count)
        for size in range(min(count, len(waiting)) + 1)
        for taken in itertools.combinations(range(len(waiting)), size)
    )
    must = due(played, waiting, version=version, bound=bound, count=count)
    if must is None or len(must) > count:
        assert not rest_can
        return
    assert rest_can
    left = played + [w for i, w in enumerate(waiting) if i not in must]
    assert feasible(left, version + 1, bound, count)
    for one in must:
        fewer = [i for i in must if i != one]
        left = played + [w for i, w in enumerate(waiting) if i not in fewer]
        assert not feasible(left, version + 1, bound, count)


def test_a_bound_without_end_costs_nothing():
    assert due([0] * 5, [0] * 9, version=3, bound=10**20, count=2) == []
    assert admissible(10**20, 4, 5, 3) == 7


def test_admission_is_closed_form():
    assert admissible(0, 4, 0, 10) == 4
    assert admissible(2, 4, 5, 10) == 7
    assert admissible(5, 4, 0, 2) == 8
    assert admissible(1, 4, 9, 10) == 0


def specs(**fixed):
    """Runs with heavy tails, failures and refused groups."""
    drawn = {
        "steps": st.integers(1, 6),
        "prompts_per_step": st.integers(1, 5),
        "samples": st.integers(1, 3),
        "slots": st.integers(1, 9),
        "replicas": st.integers(1, 3),
        "train_s": st.sampled_from([0.0, 0.05, 0.5, 3.0]),
        "accept": st.sampled_from([1.0, 0.6]),
        "fail_every_s": st.sampled_from([0.0, 0.3, 2.0]),
        "turns": st.booleans(),
        "seed": st.integers(0, 10_000),
        "length": st.just(lambda source: 1 + int(source.paretovariate(1.2)) % 200),
        "sequence_s": st.just(0.001),
        "repair_s": st.just(0.2),
    }
    return st.builds(SimSpec, **drawn | {name: st.just(value) for name, value in fixed.items()})


def simulated(spec, scheduler):
    """What a run did, each group of which was learned from once."""
    report = SimRun(spec).simulate(scheduler)
    assert [len(groups) for groups in report.learned] == [spec.prompts_per_step] * spec.steps
    learned = {g for groups in report.learned for g in groups}
    assert len(learned) == spec.prompts_per_step * spec.steps
    return report


@given(
    spec=specs(),
    bound=st.integers(0, 4),
    way=st.sampled_from(["in-flight", "abort", "drain"]),
    sampler=st.sampled_from(["in-order", "freshest", "windowed"]),
)
@settings(max_examples=200, deadline=None)
def test_async_in_virtual_time(spec, bound, way, sampler):
    options = AsyncScheduler.Config(staleness=bound, on_update=way, sampler=sampler)
    report = simulated(spec, AsyncScheduler(options))
    assert all(0 <= age <= bound for age in report.ages)


@given(spec=specs(turns=False))
@settings(max_examples=100, deadline=None)
def test_one_step_off_in_virtual_time(spec):
    """One version old, but for the first batch and what was refused and drawn anew."""
    report = simulated(spec, OneStepOffScheduler(OneStepOffScheduler.Config()))
    count = spec.prompts_per_step
    assert report.ages == [0] * count + [1] * (count * (spec.steps - 1))


@given(seed=st.integers(0, 1000), accept=st.sampled_from([1.0, 0.5]))
@settings(max_examples=30, deadline=None)
def test_bound_zero_is_sync(seed, accept):
    spec = SimSpec(
        steps=4,
        prompts_per_step=3,
        samples=2,
        length=lambda source: source.randrange(1, 60),
        slots=random.Random(seed).choice([1, 4]),
        train_s=0.5,
        accept=accept,
        seed=seed,
    )
    options = AsyncScheduler.Config(staleness=0)
    assert SimRun(spec).simulate(AsyncScheduler(options)) == SimRun(spec).simulate(
        SyncScheduler(None)
    )

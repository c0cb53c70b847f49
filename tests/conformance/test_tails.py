"""Every tail policy on simulated engines in virtual time, under ``sync``."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.host.host import PluginHost
from rlframe.interfaces.loop import Tail
from rlframe.simulation import SimReport, SimRun, SimSpec
from rlframe.testing.scheduler_kit import random_spec
from rlframe_plugins.schedulers.sync import SyncScheduler

NAMES = sorted(PluginHost().load().components("tail"))
RUNS = range(40)


@cache
def made(name: str) -> Tail:
    config = load_config(PluginHost().load(), Asked(values={"tail": name})).config.tail
    tail: Tail = config.load()(config.config)
    return tail


def played(spec: SimSpec, name: str) -> SimReport:
    return SimRun(spec, made(name)).simulate(SyncScheduler())


def test_the_shipped_policies_are_run():
    assert {"wait", "deadline", "early-stop", "partial", "defer"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", RUNS)
def test_every_step_has_its_groups_once_and_in_time(name, seed):
    spec = random_spec(seed)
    report = played(spec, name)
    assert [len(groups) for groups in report.learned] == [spec.prompts_per_step] * spec.steps
    learned = [group for groups in report.learned for group in groups]
    assert len(learned) == len(set(learned))
    assert all(0 <= age <= made(name).bound for age in report.ages)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", RUNS)
def test_no_prompt_is_left_out_of_a_whole_run(name, seed):
    """What was put off or still played comes in a later step; none is begun in vain."""
    spec = dataclasses.replace(random_spec(seed), accept=1.0)
    report = played(spec, name)
    learned = sorted(group for groups in report.learned for group in groups)
    assert learned == list(range(spec.steps * spec.prompts_per_step))


def heavy(seed: int) -> SimSpec:
    """Enough slots for all, so that a step takes as long as its longest response."""

    def length(source) -> int:
        return min(1 + int(source.lognormvariate(4, 1.2)), 4000)

    return SimSpec(
        steps=40, prompts_per_step=16, samples=4, length=length, slots=512, token_s=0.01, seed=seed
    )


@pytest.mark.parametrize("name", ["early-stop", "partial", "defer"])
@pytest.mark.parametrize("seed", range(3))
def test_long_responses_cost_less_than_waiting_for_them(name, seed):
    spec = heavy(seed)
    assert played(spec, name).seconds < 0.8 * played(spec, "wait").seconds


@pytest.mark.parametrize("seed", range(3))
def test_who_pays(seed):
    """Of early-stop long responses; of defer tokens that are drawn twice; of partial nobody."""
    spec = heavy(seed)
    reports = {name: played(spec, name) for name in ("wait", "early-stop", "partial", "defer")}
    assert reports["wait"].wasted_tokens == reports["partial"].wasted_tokens == 0
    assert reports["defer"].wasted_tokens > 0
    assert reports["early-stop"].tokens < 0.8 * reports["wait"].tokens
    assert max(reports["partial"].ages) == 1
    assert sum(reports["defer"].ages) <= 0.01 * len(reports["defer"].ages)

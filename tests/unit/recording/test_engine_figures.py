"""Counters are subtracted, gauges are not; replicas that start again count from 0."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.recording.engine_figures import EngineFigures, growth


class Engines:
    """Answers of two replicas, None of one that is away."""

    def __init__(self):
        self.stats, self.gauges = [{}, {}], [{}, {}]

    def call(self, method):
        future = Future()
        future.set_result([dict(one) if one else one for one in getattr(self, method)])
        return future


def counted(tokens, busy, hits=0.0, computed=0.0, running_s=0.0):
    return {
        "response_tokens": tokens,
        "busy_s": busy,
        "prefix_hit_tokens": hits,
        "prefill_tokens": computed,
        "running_s": running_s,
    }


def test_counters_of_a_step_are_their_growth_and_gauges_are_what_they_are():
    engines, figures = Engines(), EngineFigures()
    engines.stats = [counted(100.0, 2.0, 30.0, 10.0, 8.0), counted(50.0, 1.0)]
    engines.gauges = [{"running": 3.0, "kv_used_tokens": 64.0}, {"running": 1.0}]
    first = figures.take(engines)
    assert first["rollout/tokens_per_s"] == 50.0
    assert first["rollout/prefix_hit_ratio"] == 0.75
    assert first["rollout/running/mean"] == pytest.approx(8 / 3)
    engines.stats = [counted(160.0, 4.0, 30.0, 30.0, 20.0), counted(50.0, 1.0)]
    second = figures.take(engines)
    assert second["rollout/tokens_per_s"] == 30.0
    assert second["rollout/prefix_hit_tokens"] == 0.0
    assert second["rollout/prefill_tokens"] == 20.0
    assert second["rollout/running/mean"] == 6.0
    for found in (first, second):
        assert (found["rollout/running"], found["rollout/kv_used_tokens"]) == (4.0, 64.0)


def test_a_replica_that_is_away_or_new_takes_nothing_from_the_others():
    engines, figures = Engines(), EngineFigures()
    engines.stats = [counted(100.0, 2.0), counted(80.0, 1.0)]
    figures.take(engines)
    engines.stats, engines.gauges = [None, counted(90.0, 2.0)], [None, {"running": 2.0}]
    away = figures.take(engines)
    assert (away["rollout/tokens_per_s"], away["rollout/running"]) == (10.0, 2.0)
    engines.stats = [counted(7.0, 1.0), counted(90.0, 2.0)]
    assert figures.take(engines)["rollout/tokens_per_s"] == 7.0


def test_a_router_within_an_engine_is_heard():
    """Its counts are a step's; what is up is as few as one of the routers can reach."""
    engines, figures = Engines(), EngineFigures()
    engines.stats = [{"router/retries": 3.0, "router/deaths": 1.0}, {"router/retries": 1.0}]
    engines.gauges = [
        {"router/replicas_up": 2.0, "router/open/a": 1.0},
        {"router/replicas_up": 3.0, "router/open/a": 2.0},
    ]
    assert figures.take(engines) == {
        "rollout/router/retries": 4.0,
        "rollout/router/deaths": 1.0,
        "rollout/router/replicas_up": 2.0,
        "rollout/router/open/a": 3.0,
    }
    engines.stats[0]["router/retries"] = 5.0
    again = figures.take(engines)
    assert (again["rollout/router/retries"], again["rollout/router/deaths"]) == (2.0, 0.0)


def test_idle_or_silent_engines_give_no_rates():
    engines, figures = Engines(), EngineFigures()
    assert figures.take(engines) == {}
    engines.stats = [counted(5.0, 1.0), {}]
    figures.take(engines)
    assert "rollout/tokens_per_s" not in figures.take(engines)
    assert figures.take(None) == {}


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 30))
def test_growths_add_up_to_what_was_counted_also_over_a_restart(counts, restart):
    """What was counted before it has been taken, so nothing is lost and nothing is negative."""
    now, before, grown = 0, {}, []
    for place, more in enumerate(counts):
        now = more if place == restart else now + more
        after = {"n": now, "busy_s": place + 1 if place < restart else place - restart + 0.5}
        grown.append(growth(before, after)["n"])
        before = after
    assert grown == counts

from __future__ import annotations

import numpy as np
import pytest

from rlframe_plugins.mappers.problem import Objective
from rlframe_plugins.mappers.schedule import PoolLoad, timeline


def random_loads(rng, pools):
    loads = [PoolLoad("rollout", {"rollout": float(rng.integers(1, 9))}, {}, {}, publish=0.5)]
    for index in range(pools):
        loads.append(
            PoolLoad(
                f"p{index}",
                {},
                {f"a{index}": float(rng.integers(0, 5)), f"b{index}": float(rng.integers(0, 5))},
                {f"a{index}": float(rng.integers(0, 9))},
                publish=float(rng.integers(1, 4)) if index == 0 else 0.0,
            )
        )
    return loads


def objective(loads, staleness):
    """What the search takes a step to be."""
    goal = Objective(staleness)
    columns = []
    for p in loads:
        seconds = [sum(part.values()) for part in (p.collect, p.prepare, p.learn)]
        columns.append(goal.columns(np.array([[*seconds, p.publish]]), p.name == "p0"))
    return float(goal.value(np.maximum.reduce(columns))[0])


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("staleness", [None, 1, 2, 3])
def test_the_objective_is_the_period_of_the_schedule(seed, staleness):
    rng = np.random.default_rng(seed)
    loads = random_loads(rng, int(rng.integers(1, 4)))
    bars = timeline(loads, 96, staleness)
    ends = [max(b.end for b in bars if b.step == s and b.stage == "publish") for s in range(96)]
    period = (ends[84] - ends[24]) / 60
    assert objective(loads, staleness) == pytest.approx(period, rel=1e-6)


@pytest.mark.parametrize("staleness", [None, 1, 3])
def test_a_pool_does_one_thing_at_a_time_in_the_right_order(staleness):
    loads = random_loads(np.random.default_rng(3), 3)
    bars = timeline(loads, 12, staleness)
    for pool in {b.pool for b in bars}:
        mine = sorted((b for b in bars if b.pool == pool), key=lambda b: b.start)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(mine, mine[1:], strict=False))
    end = {(b.step, b.stage): 0.0 for b in bars}
    for b in bars:
        end[b.step, b.stage] = max(end[b.step, b.stage], b.end)
    for b in bars:
        if b.stage == "prepare":
            assert b.start >= end[b.step, "collect"] - 1e-9
        if b.stage == "learn":
            assert b.start >= end.get((b.step, "prepare"), 0.0) - 1e-9
        behind = b.step - 1 - (staleness or 0)
        if b.stage == "collect" and behind >= 0:
            assert b.start >= end[behind, "publish"] - 1e-9

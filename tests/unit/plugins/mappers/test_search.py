from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mapper_brute import brute_force, random_problem, set_partitions

from rlframe_plugins.mappers.pareto import front
from rlframe_plugins.mappers.search import Search, partitions

BELL = {1: 1, 2: 2, 3: 5, 4: 15, 5: 52, 6: 203, 7: 877}


@pytest.mark.parametrize("count", BELL)
def test_partitions_are_all_and_once(count):
    found = {frozenset(map(frozenset, p)) for p in partitions(count)}
    assert len(list(partitions(count))) == len(found) == BELL[count]
    assert found == {frozenset(map(frozenset, p)) for p in set_partitions(list(range(count)))}


@pytest.mark.parametrize("seed", range(60))
def test_front_keeps_exactly_what_nothing_beats(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 6, (int(rng.integers(1, 700)), int(rng.integers(1, 6)))).astype(float)
    kept = front(rows)
    values = {tuple(r) for r in rows[kept]}
    assert len(values) == len(kept)
    distinct = {tuple(r) for r in rows}
    beaten = lambda r: any(o != r and all(x <= y for x, y in zip(o, r)) for o in distinct)  # noqa: E731, B905
    assert values == {r for r in distinct if not beaten(r)}


def test_front_of_more_rows_than_blocks():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 30, (3000, 3)).astype(float)
    rows = np.column_stack([rows, 90 - rows.sum(axis=1) + rng.integers(0, 9, 3000)])
    kept = front(rows)
    distinct = np.unique(rows, axis=0)
    alive = [not ((distinct <= r).all(1) & (distinct != r).any(1)).any() for r in distinct]
    assert 512 < len(kept) < len(distinct)
    np.testing.assert_array_equal(rows[kept], distinct[alive])


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("block", range(20))
def test_equal_to_brute_force(block, away):
    """100 random instances a block; every one solved both ways.

    In odd blocks sets share a host."""
    fitting, bound = 0, 0
    for seed in range(100):
        rng = np.random.default_rng([block, seed])
        units = int(rng.integers(2, 5))
        grains, ways = int(rng.integers(1, 5)), 2 if units > 3 else 3
        problem = random_problem(rng, units, grains, ways, away, block % 2 == 1)
        expected, found = brute_force(problem), Search(problem).run()
        if expected is None:
            assert found == []
            continue
        fitting += 1
        assert found[0].value == pytest.approx(expected, rel=1e-12), (block, seed)
        free = Search(replace(problem, host_capacity=np.inf)).run()[0].value
        bound += free < expected
    assert fitting > 20
    assert (bound > 0) == away, "host memory decides some of them"


def test_found_placement_has_the_value_it_claims():
    from mapper_brute import _set_seconds, step_seconds

    checked = 0
    for seed in range(200):
        rng = np.random.default_rng([7, seed])
        problem = random_problem(rng, 4, 4, 2, seed % 2 == 1, seed % 4 == 3)
        for found in Search(problem).run(plans=5):
            assert sum(found.grains) <= problem.grains
            assert sorted(u for m in found.sets for u in m) == list(range(4))
            sets, host = [], 0.0
            for members, ways, grains in zip(found.sets, found.ways, found.grains, strict=True):
                for unit, way in zip(members, ways, strict=True):
                    assert problem.choices[unit].grains[way] == grains
                    host += problem.choices[unit].host[way]
                seconds = _set_seconds(problem, list(members), list(ways))
                assert seconds is not None, "memory"
                sets.append((list(members), seconds))
            assert host <= problem.host_capacity or not problem.one_host
            assert step_seconds(problem, sets) == pytest.approx(found.value)
            checked += 1
    assert checked > 100


def test_several_plans_are_the_best_of_each_partition():
    for seed in range(40):
        problem = random_problem(np.random.default_rng([9, seed]), 4, 4, 2)
        search = Search(problem)
        best = [search.best_of(p) for p in partitions(4) if problem.allows(p)]
        values = sorted(f.value for f in best if f is not None)
        found = [f.value for f in search.run(plans=3)]
        assert found == sorted(found)
        assert found[:1] == values[:1]
        if len(found) == 3 and len(set(problem.twins)) == 4:
            assert found == pytest.approx(values[:3])

"""Brute force over a mapping problem: plain loops, no fronts, no bounds, nothing shared."""

from __future__ import annotations

from itertools import product

import numpy as np

from rlframe_plugins.mappers.problem import Choices, Objective, Problem


def set_partitions(units):
    """Every set partition, by placing the first unit with each subset of the others."""
    if not units:
        yield []
        return
    first, rest = units[0], units[1:]
    for mask in range(1 << len(rest)):
        inside = [first] + [u for i, u in enumerate(rest) if mask >> i & 1]
        outside = [u for i, u in enumerate(rest) if not mask >> i & 1]
        for others in set_partitions(outside):
            yield [inside, *others]


def divisions(total, sets):
    """Every way to give each set at least one grain, some perhaps left idle."""
    if sets == 0:
        yield ()
        return
    for first in range(1, total - sets + 2):
        for rest in divisions(total - first, sets - 1):
            yield (first, *rest)


def _set_seconds(problem, members, ways):
    """Stage seconds of a set under one way each, or None where its memory does not fit."""
    seconds = [0.0] * 4
    resident, working, host = 0.0, 0.0, 0.0
    saved = 0.0
    paired = problem.pair is not None and set(problem.pair) <= set(members)
    if paired:
        a = np.array([ways[members.index(problem.pair[0])]])
        b = np.array([ways[members.index(problem.pair[1])]])
        transition, spared = problem.couple(a, b)
        saved = float(spared[0])
    for unit, way in zip(members, ways, strict=True):
        c = problem.choices[unit]
        for stage in range(4):
            if not (paired and stage == 3 and unit in problem.pair):
                seconds[stage] += c.seconds[way, stage]
        resident += c.resident[way]
        host += c.host[way]
        extra = saved if paired and unit == problem.pair[1] else 0.0
        working = max(working, c.working[way] - extra)
    if paired:
        seconds[3] += float(transition[0])
    fits = resident + working <= problem.capacity and host <= problem.host_capacity
    return seconds if fits else None


def _host_fits(problem, partition, ways):
    """Whether sets that share one host fit on it; what each has alone is looked at before."""
    if not problem.one_host:
        return True
    placed = [(u, w) for m, ws in zip(partition, ways, strict=True) for u, w in zip(m, ws)]  # noqa: B905
    return sum(problem.choices[u].host[w] for u, w in placed) <= problem.host_capacity


def step_seconds(problem, sets):
    """Seconds a step from the stage seconds of every set: (members, four seconds) each."""
    collect, prepare, learn, publish = (max(s[i] for _, s in sets) for i in range(4))
    staleness = problem.objective.staleness
    if staleness is None:
        return collect + prepare + learn + publish
    busy = max(s[1] + s[2] for _, s in sets)
    own = next((s[1] for m, s in sets if problem.pair and problem.pair[0] in m), 0.0)
    cycle = (collect + prepare + learn + publish) / (1 + staleness)
    return max(busy, own + learn + publish, collect + publish, cycle)


def brute_force(problem):
    """The best seconds a step over everything, or None where nothing fits."""
    best = None
    for partition in set_partitions(list(range(len(problem.names)))):
        if not problem.allows(partition):
            continue
        for grains in divisions(problem.grains, len(partition)):
            options = []
            for members, n in zip(partition, grains, strict=True):
                here = [np.flatnonzero(problem.choices[u].grains == n).tolist() for u in members]
                rows = [(ways, _set_seconds(problem, members, ways)) for ways in product(*here)]
                options.append([(members, s, w) for w, s in rows if s is not None])
            for sets in product(*options):
                if not _host_fits(problem, partition, [ways for *_, ways in sets]):
                    continue
                value = step_seconds(problem, [(members, s) for members, s, _ in sets])
                if best is None or value < best:
                    best = value
    return best


def random_problem(rng, units, grains, ways, away=False, one_host=False):
    """A small instance with ties, infeasible sizes, twins and a coupled pair.

    With ``away`` some ways keep bytes in host memory, of which there may be too little: for each
    set, or with ``one_host`` for all together.
    """

    def choices(stages):
        k = int(rng.integers(1, ways + 1)) * grains
        sizes = rng.integers(1, grains + 1, k)
        seconds = rng.integers(1, 12, (k, 4)) * np.array(stages, float)
        return Choices(
            sizes.astype(np.int64),
            seconds,
            rng.integers(0, 5, k).astype(float),
            rng.integers(0, 6, k).astype(float),
            rng.integers(0, 2, k).astype(np.int64),
            rng.integers(0, 4, k) * rng.integers(0, 2, k) * float(away),
        )

    names = tuple(f"u{i}" for i in range(units))
    table = [choices((0, 1, 1, 1)), choices((1, 0, 0, 1))]
    twins = [0, 1]
    for unit in range(2, units):
        if unit > 2 and rng.random() < 0.4:
            table.append(table[-1])
            twins.append(twins[-1])
        else:
            table.append(choices((0, 1, int(rng.integers(0, 2)), 0)))
            twins.append(unit)
    transition = rng.integers(0, 9, (2, 2)).astype(float)
    spared = rng.integers(0, 2, (2, 2)).astype(float)

    def couple(a, b):
        i, j = table[0].key[a], table[1].key[b]
        return transition[i, j], spared[i, j]

    stale = None if rng.random() < 0.6 else int(rng.integers(1, 4))
    return Problem(
        names,
        grains,
        float(rng.integers(4, 16)),
        tuple(table),
        tuple(twins),
        pair=(0, 1),
        couple=couple,
        objective=Objective(stale),
        alone=frozenset() if stale is None else frozenset({1}),
        together=(frozenset({0, 1}),) if stale is None and rng.random() < 0.2 else (),
        host_capacity=float(rng.integers(1, 8)) if away else np.inf,
        one_host=one_host,
    )

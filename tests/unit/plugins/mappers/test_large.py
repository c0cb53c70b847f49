"""On clusters too large for brute force: bounds from below, and nothing found beats the plan."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
from rlframe_plugins.mappers.dataflow import units_of
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.mappers.search import Search, partitions
from rlframe_plugins.mappers.space import Wishes, build_problem
from rlframe_plugins.mappers.wellknown import WELL_KNOWN
from rlframe_plugins.mappers.workload import Workload


def problem_of(algo, hardware, staleness=None):
    work = Workload(minibatch_prompts=128)
    units = units_of(WELL_KNOWN[algo].roles, {"policy": load_model("llama-2-13b")}, work)
    machine = parse_hardware(hardware, load_catalogue())
    return build_problem(units, machine, work, Wishes(staleness=staleness))[0]


CASES = [
    ("ppo", "16x8:a100-80g@ib-200", None),
    ("ppo", "16x8:a100-80g@ib-200", 1),
    ("remax", "32x8:h100", None),
    ("safe-rlhf", "16x8:h100", None),
]


@pytest.mark.parametrize(("algo", "hardware", "staleness"), CASES)
def test_between_the_bounds(algo, hardware, staleness):
    problem = problem_of(algo, hardware, staleness)
    best = Search(problem).run()[0]
    least = np.zeros(4)
    for choices in problem.choices:
        fits = choices.resident + choices.working <= problem.capacity
        least = np.maximum(least, choices.seconds[fits].min(axis=0))
    if staleness is None:
        assert best.value >= least[:3].sum()
    else:
        assert best.value >= max(least[0], least[2])
    for other in Search(problem).alternatives(6):
        assert other.value >= best.value * (1 - 1e-12)


@pytest.mark.parametrize(("algo", "hardware", "staleness"), CASES[:2])
def test_random_placements_are_never_better(algo, hardware, staleness):
    problem = problem_of(algo, hardware, staleness)
    best = Search(problem).run()[0]
    rng, tried, fitting = np.random.default_rng(0), 0, 0
    allowed = [p for p in partitions(len(problem.names)) if problem.allows(p)]
    while tried < 2000:
        tried += 1
        sets = allowed[rng.integers(len(allowed))]
        columns = [random_set(problem, members, rng, len(sets)) for members in sets]
        if any(c is None for c in columns) or sum(c[0] for c in columns) > problem.grains:
            continue
        joined = np.maximum.reduce([c[1] for c in columns])
        assert problem.objective.value(joined)[0] >= best.value * (1 - 1e-12)
        fitting += 1
    assert fitting > 20


def random_set(problem, members, rng, sets):
    """Grains and columns of a set under random ways that fit, or None."""
    grains = int(rng.choice([1, 2, 4, 8, 16]))
    ways = {}
    for unit in members:
        here = np.flatnonzero(problem.choices[unit].grains == grains)
        if not len(here) or grains > problem.grains - sets + 1:
            return None
        ways[unit] = int(rng.choice(here))
    rows = {u: problem.choices[u] for u in members}
    seconds = np.sum([rows[u].seconds[w] for u, w in ways.items()], axis=0)
    saved = 0.0
    if problem.has_pair(members):
        a, b = (np.array([ways[u]]) for u in problem.pair)
        publish, spared = problem.couple(a, b)
        seconds[3], saved = publish[0], spared[0]
    work = [rows[u].working[w] - saved * (u == problem.pair[1]) for u, w in ways.items()]
    stays = sum(rows[u].resident[w] for u, w in ways.items())
    if stays + max(work) > problem.capacity:
        return None
    return grains, problem.objective.columns(seconds[None], problem.pair[0] in members)

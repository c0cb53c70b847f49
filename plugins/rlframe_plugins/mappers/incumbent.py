"""A good placement found quickly: an upper bound that lets the exact search drop most ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlframe_plugins.mappers.problem import Choices, Floats, Ints, Problem

__all__ = ["reduced"]

_PRICES = (0.0, 0.1, 0.5, 2.0, 8.0)


def _promising(choices: Choices, problem: Problem) -> Ints:
    """Of each pool size and key the fastest ways at several prices of memory."""
    seconds = choices.seconds.sum(axis=1)
    total = (choices.resident + choices.working) / problem.capacity
    stays = choices.resident / problem.capacity
    away = choices.host / problem.host_capacity
    kept: set[int] = set()
    for grains in np.unique(choices.grains):
        here = np.flatnonzero((choices.grains == grains) & (total <= 1) & (away <= 1))
        if not len(here):
            continue
        least = max(float(seconds[here].min()), 1e-9)
        for memory in (total, stays, total + away):
            for price in _PRICES:
                cost: Floats = seconds[here] / least + price * memory[here]
                kept.add(int(here[np.argmin(cost)]))
            kept.add(int(here[np.lexsort((seconds[here], memory[here]))[0]]))
    return np.array(sorted(kept), np.int64)


def _only(choices: Choices, index: Ints) -> Choices:
    return Choices(*(column[index] for column in vars(choices).values()))


def reduced(problem: Problem) -> tuple[Problem, tuple[Ints, ...]]:
    """The same problem with a few promising ways a unit and pool size, and their old indices.

    What it finds is a placement of the whole problem too, so its value is an upper bound.
    """
    index = [_promising(choices, problem) for choices in problem.choices]
    kept = tuple(_only(c, i) for c, i in zip(problem.choices, index, strict=True))
    couple, pair = problem.couple, problem.pair
    if couple is None or pair is None:
        return replace(problem, choices=kept), tuple(index)
    policy, rollout = index[pair[0]], index[pair[1]]

    def translated(ways: Ints, others: Ints) -> tuple[Floats, Floats]:
        return couple(policy[ways], rollout[others])

    return replace(problem, choices=kept, couple=translated), tuple(index)

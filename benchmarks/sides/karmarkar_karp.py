"""The differencing method of Karmarkar and Karp (1982) for several parts, to compare with.

A partial solution is a vector of part sums, greatest first. The two whose greatest and least sums
differ most are merged, the greatest part of one with the least of the other, until one is left.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

__all__ = ["differencing"]

Ints = NDArray[np.int64]


def differencing(costs: NDArray[np.float64], parts: int) -> Ints:
    """The part of every item: (n,) -> (n,)."""
    solutions: list[NDArray[np.float64]] = []
    merged: dict[int, tuple[int, int, Ints]] = {}
    heap = []
    for number, cost in enumerate(costs):
        alone = np.zeros(parts)
        alone[0] = cost
        solutions.append(alone)
        heap.append((-float(cost), number))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, one = heapq.heappop(heap)
        _, other = heap[0]
        sums = solutions[one] + solutions[other][::-1]
        order = np.argsort(-sums, kind="stable")
        number = len(solutions)
        solutions.append(sums[order])
        merged[number] = (one, other, order)
        heapq.heapreplace(heap, (-float(sums[order[0]] - sums[order[-1]]), number))
    return _unfold(merged, heap[0][1], len(costs), parts)


def _unfold(merged: dict[int, tuple[int, int, Ints]], last: int, items: int, parts: int) -> Ints:
    out = np.zeros(items, np.int64)
    open_solutions = [(last, np.arange(parts))]
    while open_solutions:
        number, part_of = open_solutions.pop()
        if number < items:
            out[number] = part_of[0]
            continue
        one, other, order = merged[number]
        mine = np.empty(parts, np.int64)
        mine[order] = part_of
        open_solutions += [(one, mine), (other, mine[::-1])]
    return out

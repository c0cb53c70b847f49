"""Dealing rows to ranks so that their floating-point operations are even.

The greedy rule (longest processing time first, Graham 1969), then moves and swaps between the
busiest and the idlest ranks. On 8,192 sequences and 128 ranks it is within 0.2 % of even; the
differencing method of Karmarkar and Karp (1982) comes nearer, takes about eight times as long and
cannot keep the number of rows alike (``benchmarks/fan_out.py`` measures both).
"""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["WIDTH", "deal", "imbalance", "sequence_costs", "width_of"]

Costs = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH = 4096
"""Hidden size of the model that costs are those of where none is known (about 7 B parameters)."""
_EVEN = 1e-4
"""Excess of the busiest rank over the mean, as a share of it, that is not worth a move."""
_SWEEPS = 16


def sequence_costs(lengths: Ints, width: int = WIDTH) -> Costs:
    """Relative operations of a causal transformer on sequences of (n,) tokens: (n,).

    A layer of hidden size h costs about 24 h^2 operations a token in its matrices (12 h^2
    parameters) and, attention being causal, 2 h s a token in attention over s tokens: together
    proportional to ``s + s^2 / (12 h)``.
    """
    tokens = lengths.astype(np.float64)
    return tokens * (1.0 + tokens / (12.0 * width))


def width_of(folder: str) -> int:
    """``hidden_size`` of a model's ``config.json``; ``WIDTH`` where the folder has none."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        return WIDTH
    found = json.loads(file.read_text(encoding="utf-8"))
    return int(found["hidden_size"]) if "hidden_size" in found else WIDTH


def deal(costs: Costs, ranks: int, *, equal_counts: bool = False) -> Ints:
    """The rank of every item, (n,), such that the sums of ``costs`` (n,) over ranks are even.

    ``equal_counts``: ranks get equally many items, or one fewer.
    """
    if ranks == 1:
        return np.zeros(len(costs), np.int64)
    dealt = _greedy(costs, ranks, -(-len(costs) // ranks) if equal_counts else len(costs))
    return _Refinement(costs, dealt, ranks, equal_counts).run()


def imbalance(costs: Costs, dealt: Ints, ranks: int) -> float:
    """How much longer the busiest rank works than the mean one, as a share of the mean."""
    load = np.bincount(dealt, weights=costs, minlength=ranks)
    mean = load.mean()
    return float(load.max() / mean - 1.0) if mean else 0.0


def _greedy(costs: Costs, ranks: int, most: int) -> Ints:
    """Costliest first, each to the least loaded rank that has fewer than ``most`` items.

    With n items and ``most`` the ceiling of n / ranks, a rank may end with several fewer than
    others; so only the first n - ranks * (most - 1) ranks to get there are given ``most``.
    """
    dealt = np.zeros(len(costs), np.int64)
    full = len(costs) - ranks * (most - 1)
    open_ranks = [(0.0, rank, 0) for rank in range(ranks)]
    for item in np.argsort(-costs, kind="stable").tolist():
        load, rank, count = open_ranks[0]
        dealt[item] = rank
        full -= count + 1 == most
        if count + 1 < most - (full <= 0):
            heapq.heapreplace(open_ranks, (load + costs[item], rank, count + 1))
        else:
            heapq.heappop(open_ranks)
        if full == 0 and count + 1 == most:
            open_ranks = [one for one in open_ranks if one[2] < most - 1]
            heapq.heapify(open_ranks)
    return dealt


class _Refinement:
    """Moves and swaps between the busiest rank and the idlest, the next busiest and next idlest.

    Each takes the pair's loads as near to each other as one move can. A sweep sorts the ranks once,
    so that its time grows with the number of items alone.
    """

    def __init__(self, costs: Costs, dealt: Ints, ranks: int, swaps_only: bool) -> None:
        self._costs, self._dealt, self._swaps_only = costs, dealt, swaps_only
        self._load = np.bincount(dealt, weights=costs, minlength=ranks)
        order = np.argsort(dealt, kind="stable")
        self._items = np.split(order, np.cumsum(np.bincount(dealt, minlength=ranks))[:-1])

    def run(self) -> Ints:
        """Sweep until the busiest rank gains less than a tenth of its excess."""
        mean = self._load.mean()
        for _ in range(_SWEEPS):
            before = self._load.max() - mean
            if before <= _EVEN * mean:
                break
            self._sweep(mean * (1 + _EVEN))
            if self._load.max() - mean > 0.9 * before:
                break
        return self._dealt

    def _sweep(self, enough: float) -> None:
        by_load = np.argsort(-self._load, kind="stable")
        half = len(by_load) // 2
        for high, low in zip(by_load[:half].tolist(), by_load[::-1].tolist(), strict=False):
            if self._load[high] <= enough:
                return
            self._even_out(high, low)

    def _even_out(self, high: int, low: int) -> None:
        gap = self._load[high] - self._load[low]
        mine, others = self._items[high], self._items[low]
        others = others[np.argsort(self._costs[others], kind="stable")]
        back = self._costs[others]
        if not self._swaps_only:
            back = np.concatenate([np.zeros(1), back])
        if not len(mine) or not len(back):
            return
        give = self._costs[mine]
        at = np.searchsorted(back, give - gap / 2)
        choices = np.clip(np.stack([at - 1, at]), 0, len(back) - 1)
        moved = give - back[choices]
        side, x = divmod(int(np.abs(moved - gap / 2).argmin()), len(mine))
        if not 0 < moved[side, x] < gap:
            return
        y = int(choices[side, x]) - (not self._swaps_only)
        self._exchange(high, low, mine[x], others[y] if y >= 0 else None)

    def _exchange(self, high: int, low: int, given: np.int64, taken: np.int64 | None) -> None:
        moves = [(given, high, low)] if taken is None else [(given, high, low), (taken, low, high)]
        for item, source, target in moves:
            kept = self._items[source]
            self._items[source] = kept[kept != item]
            self._items[target] = np.append(self._items[target], item)
            self._load[source] -= self._costs[item]
            self._load[target] += self._costs[item]
            self._dealt[item] = target

"""Dealing rows to ranks so that their floating-point operations are even."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["deal", "imbalance", "sequence_costs"]

Costs = NDArray[np.float64]

WIDTH = 4096
"""Hidden size of the model that costs are those of where none is known (about 7 B parameters)."""


def sequence_costs(lengths: NDArray[np.int64], width: int = WIDTH) -> Costs:
    """Relative operations of a causal transformer on sequences of (n,) tokens: (n,).

    A layer of hidden size h costs about 24 h^2 operations a token in its matrices (12 h^2
    parameters) and, attention being causal, 2 h s a token in attention over s tokens: together
    proportional to ``s + s^2 / (12 h)``.
    """
    tokens = lengths.astype(np.float64)
    return tokens * (1.0 + tokens / (12.0 * width))


def deal(costs: Costs, ranks: int) -> NDArray[np.int64]:
    """The rank of every item, (n,), such that the ranks' summed costs are even."""
    out = np.zeros(len(costs), np.int64)
    load = np.zeros(ranks)
    for i in np.argsort(-costs, kind="stable"):
        rank = int(load.argmin())
        out[i] = rank
        load[rank] += costs[i]
    return out


def imbalance(costs: Costs, dealt: NDArray[np.int64], ranks: int) -> float:
    """How much longer the busiest rank works than the mean one, as a share of the mean."""
    load = np.bincount(dealt, weights=costs, minlength=ranks)
    mean = load.mean()
    return float(load.max() / mean - 1.0) if mean else 0.0

"""Pareto fronts of rows: smaller is better in every column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["front"]

_BLOCK = 256


def front(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of rows (n, k) that no other row equals or beats in every column.

    Of equal rows the first one stays. Rows are visited in rising lexicographic order, in blocks:
    a row can only be beaten by an earlier one.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    live = [k for k in range(rows.shape[1]) if rows[:, k].min() < rows[:, k].max()]
    if not live:
        return np.zeros(1, np.int64)
    table = rows[:, live]
    order = np.lexsort((np.arange(len(table)), *table.T[::-1]))
    if len(live) == 1:
        return order[:1]
    kept = np.zeros(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[~_beaten(table[kept], table[block])]
        inside = _pairs(table[block], table[block])
        inside[np.tril_indices(len(block))] = False
        kept = np.concatenate([kept, block[~inside.any(axis=0)]])
    return kept


def _pairs(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(len(a), len(b)): whether a row of ``a`` is at most a row of ``b`` in every column."""
    result = a[:, None, 0] <= b[None, :, 0]
    for k in range(1, a.shape[1]):
        result &= a[:, None, k] <= b[None, :, k]
    return result


def _beaten(kept: NDArray[np.float64], block: NDArray[np.float64]) -> NDArray[np.bool_]:
    if not len(kept):
        return np.zeros(len(block), np.bool_)
    return np.asarray(_pairs(kept, block).any(axis=0))

"""Pareto fronts of rows: smaller is better in every column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["front"]

_BLOCK = 256

Ranks = NDArray[np.integer[Any]]
"""Columns (k, n) as places in rising order: they compare as the values, but faster."""


def front(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of rows (n, k) that no other row equals or beats in every column.

    Of equal rows the first one stays; the result is in rising lexicographic order. Rows are visited
    by rising sums of ranks, in blocks: a row can only be beaten by one of a smaller sum, and those
    of the smallest beat most of the others.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    live = [k for k in range(rows.shape[1]) if rows[:, k].min() < rows[:, k].max()]
    if not live:
        return np.zeros(1, np.int64)
    if len(live) == 1:
        return np.array([rows[:, live[0]].argmin()], np.int64)
    ranks = _ranks(rows[:, live])
    order = np.argsort(ranks.sum(axis=0, dtype=np.int64), kind="stable")
    kept = np.zeros(0, np.int64)
    start, size = 0, _BLOCK
    while start < len(order):
        block = order[start : start + size]
        start, size = start + len(block), min(2 * size, 16 * _BLOCK)
        for first in range(0, len(kept), _BLOCK):
            block = block[~_beaten(ranks, kept[first : first + _BLOCK], block)]
        kept = np.concatenate([kept, *_own(ranks, block)])
    return np.asarray(kept[np.lexsort(ranks[::-1, kept])])


def _own(ranks: Ranks, block: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows of a block, in their order, that no earlier one of it beats; in parts."""
    kept: list[NDArray[np.int64]] = []
    while len(block):
        first, block = block[:_BLOCK], block[_BLOCK:]
        inside = _pairs(ranks[:, first], ranks[:, first])
        inside[np.tril_indices(len(first))] = False
        first = first[~inside.any(axis=0)]
        kept.append(first)
        block = block[~_beaten(ranks, first, block)]
    return kept


def _beaten(ranks: Ranks, some: NDArray[np.int64], block: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(len(block),): which of a block any of some rows equals or beats."""
    return np.asarray(_pairs(ranks[:, some], ranks[:, block]).any(axis=0))


def _ranks(table: NDArray[np.float64]) -> Ranks:
    """Each column's values as their places in rising order."""
    ranked = np.stack([np.unique(column, return_inverse=True)[1] for column in table.T])
    small = ranked.max() <= np.iinfo(np.int16).max
    return ranked.astype(np.int16 if small else np.int32)


def _pairs(a: Ranks, b: Ranks) -> NDArray[np.bool_]:
    """(len(a), len(b)): whether a row of ``a`` is at most a row of ``b`` in every column."""
    result = a[0, :, None] <= b[0, None, :]
    for mine, other in zip(a[1:], b[1:], strict=True):
        result &= mine[:, None] <= other[None, :]
    return np.asarray(result)

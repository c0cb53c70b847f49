"""Which blocks of a decode step belong to which rows, laid out for products over many blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS

__all__ = ["Part", "Split"]

_WIDEST = 16
"""Rows that share a block in one product."""

_DENSE = 0.35
"""Share of used blocks in a range from which on the range is read as it lies, without a copy."""


@dataclass(frozen=True)
class Part:
    """n blocks, each with the rows (n, s) that use it; ``nobody`` fills up."""

    blocks: slice | NDArray[np.int64]
    rows: NDArray[np.int64]
    nobody: int
    unseen: NDArray[np.bool_] | None = None
    """Slots (n, BLOCK_TOKENS) past the end of their row; None where every block is full."""


class Split:
    """The blocks of all rows in two parts: those of one row each, and those that rows share.

    ``pairs`` (B, M): for each row the places of its blocks among all parts' (block, user) pairs, in
    the order of the parts, filled up with its first.
    """

    def __init__(
        self, positions: NDArray[np.int64], tables: NDArray[np.int64], exact: bool
    ) -> None:
        self._nobody = len(positions)
        counts = positions // BLOCK_TOKENS + 1
        inside = np.arange(int(counts.max()))[None, :] < counts[:, None]
        self._rows, self._columns = np.nonzero(inside)
        self._ids = tables[:, : inside.shape[1]][inside]
        self.parts: list[Part] = []
        self._place = np.zeros(len(self._ids), np.int64)
        self._size = 0
        if exact:
            self._alone(np.arange(len(self._ids)), exact)
        else:
            self._grouped()
        self.pairs = np.zeros(inside.shape, np.int64)
        self.pairs[inside] = self._place
        self.pairs = np.where(inside, self.pairs, self.pairs[:, :1])
        self._cut(positions, counts)

    def _grouped(self) -> None:
        order = np.argsort(self._ids, kind="stable")
        _, first, users = np.unique(self._ids[order], return_index=True, return_counts=True)
        self._alone(order[first[users == 1]], exact=False)
        if (users > 1).any():
            self._shared(order, first[users > 1], users[users > 1])

    def _alone(self, which: NDArray[np.int64], exact: bool) -> None:
        """Blocks of one row each: first of all parts, for the last blocks of rows are among them.

        In place where they lie close together, with holes that belong to nobody.
        """
        ids = self._ids[which]
        low, high = int(ids.min()), int(ids.max()) + 1
        blocks: slice | NDArray[np.int64] = ids
        if exact or len(ids) < _DENSE * (high - low):
            self._place[which] = np.arange(len(ids))
            rows = self._rows[which][:, None]
        else:
            self._place[which] = ids - low
            rows = np.full((high - low, 1), self._nobody)
            rows[ids - low, 0] = self._rows[which]
            blocks = slice(low, high)
        self._size = len(rows)
        self.parts.append(Part(blocks, rows, self._nobody))

    def _shared(
        self, order: NDArray[np.int64], first: NDArray[np.int64], users: NDArray[np.int64]
    ) -> None:
        """Blocks of several rows; one of more than ``_WIDEST`` comes several times."""
        width = min(int(users.max()), _WIDEST)
        times = -(-users // width)
        begin = np.cumsum(times) - times
        user = np.arange(users.sum()) - np.repeat(np.cumsum(users) - users, users)
        which = order[np.repeat(first, users) + user]
        block = np.repeat(begin, users) + user // width
        rows = np.full((int(times.sum()), width), self._nobody)
        rows[block, user % width] = self._rows[which]
        self._place[which] = self._size + block * width + user % width
        self.parts.append(Part(np.repeat(self._ids[order[first]], times), rows, self._nobody))

    def _cut(self, positions: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Hide what lies behind each row's position in its last block."""
        one: Any = self.parts[0]
        last = self.pairs[np.arange(len(positions)), counts - 1]
        unseen = np.zeros((len(one.rows), BLOCK_TOKENS), np.bool_)
        unseen[last] = np.arange(BLOCK_TOKENS)[None, :] > (positions % BLOCK_TOKENS)[:, None]
        self.parts[0] = Part(one.blocks, one.rows, one.nobody, unseen)

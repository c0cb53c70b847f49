"""Whose turn it is among the sources of a mixture, and the order of rows within each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlframe.data.mixture import Share

__all__ = ["Cursor", "Turns", "epoch_order"]


class Cursor:
    """Gives the rows of one source, each once an epoch; ``given`` counts those that were used."""

    def __init__(self, share: Share, seed: int, shuffle: bool, number: int) -> None:
        self.share, self.given = share, 0
        self._seed, self._shuffle, self._number = seed, shuffle, number
        self.enter(0, 0)

    def enter(self, epoch: int, position: int) -> None:
        """Stand before the row at ``position`` (from 0) of an epoch (from 0)."""
        self.epoch, self.position = epoch, position
        self.order = epoch_order(self.share.rows, self._seed, epoch, self._shuffle, self._number)

    @property
    def index(self) -> int:
        """Where in the dataset the row in front of us lies."""
        return self.share.start + int(self.order[self.position])

    def advance(self) -> None:
        """Leave the row behind; after the last one a new epoch begins."""
        if self.position + 1 == self.share.rows:
            self.enter(self.epoch + 1, 0)
        else:
            self.position += 1


class Turns:
    """Chooses the source of each draw so that after every draw shares are as near as they can be.

    The source with the largest lag behind its weight is next (the first of equals): no chance in
    it, so that each batch has its sources in their proportions. Rows that are dropped as over-long
    are no draws.
    """

    def __init__(self, shares: Sequence[Share], seed: int, shuffle: bool) -> None:
        self.cursors = [Cursor(share, seed, shuffle, i) for i, share in enumerate(shares)]

    def next(self) -> Cursor:
        """The source whose turn it is."""
        drawn = sum(cursor.given for cursor in self.cursors)
        return max(self.cursors, key=lambda c: c.share.weight * (drawn + 1) - c.given)

    @property
    def epoch(self) -> int:
        """Whole passes over the source that was passed least often."""
        return min(cursor.epoch for cursor in self.cursors)

    def state(self) -> list[list[int]]:
        """Epoch, position and rows given of each source."""
        return [[cursor.epoch, cursor.position, cursor.given] for cursor in self.cursors]

    def restore(self, state: Sequence[Sequence[int]]) -> None:
        """The reverse of :meth:`state`."""
        for cursor, (epoch, position, given) in zip(self.cursors, state, strict=True):
            cursor.enter(int(epoch), int(position))
            cursor.given = int(given)

    def order_hash(self) -> str:
        """Changes with the order of rows in the present epochs."""
        digest = hashlib.sha256()
        for cursor in self.cursors:
            digest.update(cursor.order.tobytes())
        return digest.hexdigest()[:16]


def epoch_order(
    rows: int, seed: int, epoch: int, shuffle: bool, source: int = 0
) -> NDArray[np.int64]:
    """The order of an epoch, (rows,) int64: sorted by random keys, so that it never changes."""
    if not shuffle:
        return np.arange(rows, dtype=np.int64)
    entropy = [seed, epoch, source] if source else [seed, epoch]
    bits = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(rows)
    return np.argsort(bits, kind="stable").astype(np.int64)

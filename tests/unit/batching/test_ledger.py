"""A block is freed with its last row, whatever order groups are learned from in."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rlframe import Batch
from rlframe.batching.ledger import Ledger
from rlframe.interfaces.transfer import LocalTransfer


class Watched(LocalTransfer):
    """Remembers what was freed."""

    def __init__(self):
        super().__init__()
        self.freed: list[str] = []

    def free(self, handles):
        self.freed += [handle.column for handle in handles]


def whole(transfer):
    columns = {
        "response_ids": [[1], [2, 3], [4], [5, 6, 7]],
        "rewards": np.arange(4, dtype=np.float32),
    }
    return Batch.from_columns(columns, transfer=transfer)


def test_a_shared_block_waits_for_its_last_group():
    transfer = Watched()
    ledger, batch = Ledger(transfer), whole(transfer)
    first, second = batch.take([2, 0]), batch.take([3, 1])
    learned = first.add({"old_logprobs": [[0.0], [0.0]]}).carry(
        {"advantages": np.ones(2, np.float32)}
    )
    ledger.done(learned)
    assert transfer.freed == ["old_logprobs"], "carried values lie nowhere"
    ledger.done(first)
    assert transfer.freed == ["old_logprobs"], "the same rows again are not further rows"
    ledger.done(second)
    assert sorted(transfer.freed) == ["old_logprobs", "response_ids", "rewards"]


def test_repeated_rows_count_once():
    transfer = Watched()
    ledger, batch = Ledger(transfer), whole(transfer)
    ledger.done(batch.take([0, 1, 2]).repeat(3))
    assert transfer.freed == []
    ledger.done(batch.take([3, 3]))
    assert sorted(transfer.freed) == ["response_ids", "rewards"]


class Forgetful(LocalTransfer):
    """A freed block is gone, as where blocks lie in a store."""

    def __init__(self):
        super().__init__()
        self.live: set[str] = set()

    def put(self, columns):
        handles = super().put(columns)
        self.live |= {handle.key for handle in handles.values()}
        return handles

    def fetch(self, pieces):
        for handle, _ in pieces:
            assert handle.key in self.live, f"'{handle.column}' was freed"
        return super().fetch(pieces)

    def free(self, handles):
        for handle in handles:
            self.live.discard(handle.key)


def collected(transfer, rng, groups):
    """Groups of one to three rows that share a block a column."""
    sizes = [rng.randint(1, 3) for _ in range(groups)]
    lengths = [rng.randint(0, 3) for _ in range(sum(sizes))]
    columns = {
        "response_ids": [list(range(n)) for n in lengths],
        "rewards": np.arange(len(lengths), dtype=np.float32),
    }
    return Batch.from_columns(columns, transfer=transfer).split(sizes)


def readable(batch):
    return all(len(batch.packed(name)) == len(batch) for name in batch)


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_is_readable_and_what_nobody_waits_for_is_gone(seed):
    """Groups of many collections, learned from or dropped in any order, some rows repeated."""
    rng = random.Random(seed)
    transfer = Forgetful()
    ledger = Ledger(transfer)
    waiting: list[Batch] = []
    for step in range(20):
        waiting += collected(transfer, rng, rng.randint(1, 5))
        rng.shuffle(waiting)
        cut = rng.randint(1, len(waiting)) if step < 19 else len(waiting)
        taken, waiting = waiting[:cut], waiting[cut:]
        batch = Batch.concat(taken).shuffle(step)
        learned = batch.add({"old_logprobs": [[0.0] * n for n in batch.lengths("response_ids")]})
        assert readable(learned.repeat(rng.randint(1, 2)))
        ledger.done(learned)
        if step % 3 == 0:
            ledger.done(batch)
        assert transfer.live == {handle.key for group in waiting for handle in group.handles()}
        assert all(readable(group) for group in waiting)
    assert transfer.live == set()

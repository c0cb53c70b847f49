"""A block is freed with its last row, whatever order groups are learned from in."""

from __future__ import annotations

import numpy as np

from rlframe import Batch
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.ledger import Ledger


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

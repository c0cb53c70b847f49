"""Roles of different pools work at the same time; results come in the order of the roles."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from rlframe import Batch, RoleSpec
from rlframe.batching.packed import Packed
from rlframe.calling.protocol import Mesh
from rlframe.calling.together import infer_together, update_together
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.recording.metrics import Stopwatch

ROLES = [RoleSpec("policy", outputs={"logprobs": "old_logprobs"}),
         RoleSpec("reference", outputs={"logprobs": "ref_logprobs"}),
         RoleSpec("critic", outputs={"values": "values"})]  # fmt: skip


class Pool(WorkerGroup):
    """Answers only once every role was asked: whoever waits in between waits for ever."""

    mesh = Mesh()

    def __init__(self, role, column, asked, transfer, error=None):
        self.role, self.column, self.asked, self.transfer = role, column, asked, transfer
        self.error = error

    def call(self, method, *args):
        future: Future = Future()
        self.asked.append((future, self, args[0]))
        if len(self.asked) == len(ROLES):
            for one, pool, batch in reversed(self.asked):
                pool.answer(one, batch)
        return future

    def answer(self, future, batch):
        if self.error is not None:
            future.set_exception(self.error)
            return
        lengths = batch.lengths("response_ids")
        values = np.full(int(lengths.sum()), float(len(self.role)), np.float32)
        handles = self.transfer.put({self.column: Packed(values, lengths)})
        future.set_result([(handles, np.arange(len(batch)))])

    def client(self):
        raise NotImplementedError


def pools(**errors):
    asked, transfer = [], LocalTransfer()
    columns = {role.name: next(iter(role.outputs.values())) for role in ROLES}
    return {
        name: Pool(name, column, asked, transfer, errors.get(name))
        for name, column in columns.items()
    }


def batch_of_two():
    return Batch.from_columns({"response_ids": [[1, 2], [3]]})


def test_every_scorer_is_asked_before_any_is_waited_for():
    clock = Stopwatch()
    scored = infer_together(ROLES, pools(), batch_of_two(), clock)
    assert scored.columns == ("response_ids", "old_logprobs", "ref_logprobs", "values")
    assert scored["values"].tolist() == [[6.0, 6.0], [6.0, 0.0]]
    assert set(clock.take()) == {f"timing_s/{n}" for n in ("old_log_prob", "ref", "values")}


def test_the_failure_of_the_first_role_is_told():
    groups = pools(reference=ValueError("reference"), critic=ValueError("critic"))
    with pytest.raises(ValueError, match="reference"):
        infer_together(ROLES, groups, batch_of_two(), Stopwatch())


def test_updates_overlap_and_come_in_order():
    clock = Stopwatch()
    plans = [(role, None) for role in ROLES]
    found = list(update_together(plans, pools(), batch_of_two(), clock))
    assert [role.name for role, _ in found] == ["policy", "reference", "critic"]
    assert {"timing_s/update_actor", "timing_s/update_critic"} <= set(clock.take())

"""Laws of distributing and collecting, over random meshes and batches."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.batching.balance import sequence_costs
from rlframe.batching.plan import plan_batch, sequence_lengths
from rlframe.calling.fan_out import Share, collect, distribute
from rlframe.calling.protocol import (
    ALL_TO_ALL,
    DP_METRIC,
    DP_PROTO,
    ONE_TO_ALL,
    ONE_TO_ONE,
    THREE_D_ALL_MICRO_DP,
    THREE_D_PP_ONLY,
    THREE_D_PROTO,
    Mesh,
    Protocol,
)
from rlframe.errors import BatchError
from rlframe.testing.protocol_laws import (
    check_echo,
    check_rows,
    check_rule,
    fan_out,
    ragged_batch,
)

CUTTING = (DP_PROTO, DP_METRIC, THREE_D_PROTO, THREE_D_ALL_MICRO_DP)
RULES = (*CUTTING, ONE_TO_ALL, ONE_TO_ONE, THREE_D_PP_ONLY)


@st.composite
def meshes(draw):
    dp, pg, kp, tg, kt = (draw(st.integers(1, 4)) for _ in range(5))
    return Mesh(dp, pg * kp, tg * kt, pg, tg)


batches = st.builds(
    ragged_batch,
    rows=st.integers(0, 40),
    seed=st.integers(0, 99),
    blocks=st.integers(1, 4),
)
rules = st.sampled_from(RULES)
cutting = st.sampled_from(CUTTING)


@settings(max_examples=60, deadline=None)
@given(rule=rules, mesh=meshes(), batch=batches, together=st.booleans())
def test_every_law(rule, mesh, batch, together):
    rule = rule.keeping("group_ids") if together else rule
    check_rule(rule, mesh)
    check_rows(rule, mesh, batch)
    check_echo(rule, mesh, batch)


@settings(max_examples=25, deadline=None)
@given(
    first=st.sampled_from((DP_PROTO, THREE_D_PROTO, THREE_D_ALL_MICRO_DP)),
    second=cutting,
    mesh=meshes(),
    other=meshes(),
    batch=batches,
)
def test_collecting_by_one_rule_and_distributing_by_another_keeps_the_order(
    first, second, mesh, other, batch
):
    def echo(chunk):
        columns = {
            "echo_ids": chunk.packed("response_ids"),
            "echo_rewards": chunk.packed("rewards"),
        }
        return chunk.transfer.put(columns)

    made = batch.add_handles(fan_out(first, mesh, (batch,), echo))
    for share in distribute(second, other, (made,)):
        chunk = share.args[0]
        assert chunk["echo_rewards"].tolist() == chunk["rewards"].tolist() == share.rows.tolist()
        assert np.array_equal(chunk.packed("echo_ids").values, chunk.packed("response_ids").values)


@settings(max_examples=25, deadline=None)
@given(mesh=meshes(), batch=batches)
def test_a_chunk_that_is_sent_holds_its_rows_alone(mesh, batch):
    for share in distribute(THREE_D_PROTO, mesh, (batch,)):
        sent = pickle.loads(pickle.dumps([h for h in share.args[0].handles()]))
        held = [0 if h.lengths is None else len(h.lengths) for h in sent]
        assert max(held, default=0) <= len(share.rows)
        if mesh.dp > 1:
            values = [len(h.values) for h in sent if h.values is not None]
            assert sum(values) <= 2 * len(share.rows), "group_ids and rewards"


@settings(max_examples=60, deadline=None)
@given(
    mesh=meshes(),
    batch=batches,
    epochs=st.integers(1, 3),
    prompts=st.integers(0, 4),
    budget=st.integers(1, 60),
)
def test_a_plan_goes_with_its_rows(mesh, batch, epochs, prompts, budget):
    sizes = {"budget": budget, "ranks": mesh.dp}
    plan = plan_batch(batch, epochs=epochs, minibatch_prompts=prompts, **sizes)
    shares = distribute(DP_METRIC, mesh, (batch, plan))
    steps = len(plan.minibatches)
    for replica, rank in enumerate(DP_METRIC.collected(mesh)):
        chunk, mine = shares[rank].args
        assert len(mine.minibatches) == steps
        for whole, local in zip(plan.minibatches, mine.minibatches, strict=True):
            (micros,) = local.micros
            assert len(micros) == len(whole.micros[replica])
            for wanted, got in zip(whole.micros[replica], micros, strict=True):
                assert shares[rank].rows[got].tolist() == wanted.tolist()
        used = {int(r) for step in mine.minibatches for m in step.micros[0] for r in m}
        assert used == set(range(len(chunk))), "a rank holds no row that it does not use"
    if epochs == 1:
        sent = [shares[rank].rows for rank in DP_METRIC.collected(mesh)]
        assert sum(map(len, sent)) == len(batch), "in one epoch each row goes to one replica"


def test_rows_are_dealt_by_operations():
    batch = ragged_batch(200)
    shares = distribute(THREE_D_PROTO, Mesh(8), (batch,))
    costs = sequence_costs(sequence_lengths(batch))
    loads = [costs[share.rows].sum() for share in shares]
    assert max(loads) - min(loads) <= 0.05 * np.mean(loads)
    for share in shares:
        assert share.rows.tolist() == sorted(share.rows.tolist())


def test_one_chunk_is_the_callers_batch_as_it_is():
    batch = ragged_batch(9, blocks=2)
    for rule in CUTTING:
        (share,) = distribute(rule, Mesh(), (batch, 3))
        assert share.args[0] is batch
        assert share.args[1] == 3
        assert share.rows.tolist() == list(range(9))


def test_fewer_rows_than_ranks_call_the_others_with_none():
    batch = ragged_batch(2)
    shares = distribute(DP_PROTO, Mesh(5), (batch,))
    assert sorted(len(share.args[0]) for share in shares) == [0, 0, 0, 1, 1]
    empty = next(share.args[0] for share in shares if not len(share.rows))
    assert empty.columns == batch.columns
    assert empty["response_ids"].shape == (0, 0)
    assert empty.lengths("response_ids").shape == (0,)


def test_whole_arguments_go_to_those_who_are_called():
    mesh = Mesh(2, 2, 2)
    assert distribute(ONE_TO_ALL, mesh, (1, "a")) == [Share((1, "a"))] * 8
    assert distribute(ONE_TO_ONE, mesh, (1,)) == [Share((1,))] + [None] * 7
    stages = fan_out(THREE_D_PP_ONLY, mesh, ("x",), lambda x: x)
    assert stages == ["x", "x"]


def test_one_value_a_rank():
    mesh = Mesh(1, 1, 3)
    assert fan_out(ALL_TO_ALL, mesh, ([1, 2, 3], (10, 20, 30)), lambda a, b: a + b) == [11, 22, 33]
    for wrong in ([1, 2], "abc", 7):
        with pytest.raises(BatchError, match="one value a rank"):
            distribute(ALL_TO_ALL, mesh, (wrong,))


def test_what_is_collected():
    mesh = Mesh(2, 2, 1)
    results = dict(enumerate([{"a": 1.0}, {"a": 2.0}, {"a": 4.0}, {"a": 8.0}]))
    shares = distribute(DP_METRIC, mesh, (ragged_batch(4),))
    assert collect(DP_METRIC, mesh, shares, results) == [{"a": 2.0}, {"a": 8.0}]
    mean = Protocol(
        "MEAN", DP_METRIC.chunks, DP_METRIC.chunk_of, DP_METRIC.collected, combine="mean"
    )
    assert collect(mean, mesh, shares, results) == {"a": 5.0}
    assert collect(mean, mesh, shares, {1: 3, 3: 4}) == 3.5
    assert collect(ONE_TO_ONE, mesh, [Share(()), None, None, None], {0: "x"}) == "x"


def test_what_cannot_be_cut_is_told():
    mesh = Mesh(2)
    with pytest.raises(BatchError, match="DP_PROTO cuts a batch into 2 chunks, but was given int"):
        distribute(DP_PROTO, mesh, (3,))
    with pytest.raises(BatchError, match="given no argument"):
        distribute(DP_PROTO, mesh, ())
    with pytest.raises(BatchError, match="given Batch, Batch"):
        distribute(DP_PROTO, mesh, (ragged_batch(3), ragged_batch(4)))
    batch = ragged_batch(4)
    with pytest.raises(BatchError, match="plan for 3 ranks was given to 2"):
        distribute(DP_METRIC, mesh, (batch, plan_batch(batch, budget=9, ranks=3)))

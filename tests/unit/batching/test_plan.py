"""The update plan covers every row once an epoch, in whole groups, evenly over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.batching.plan import UpdatePlan, infer_plan, plan_update


@st.composite
def batches(draw):
    size = draw(st.integers(1, 30))
    lengths = draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    groups = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    pairs = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    atoms = [g * 10 + p for g, p in zip(groups, pairs, strict=True)]
    return np.array(lengths), np.array(groups) * 1000, np.array(atoms)


def rows_of(minibatch):
    return sorted(minibatch.rows.tolist())


@settings(max_examples=100, deadline=None)
@given(
    batch=batches(),
    epochs=st.integers(1, 3),
    prompts=st.integers(0, 5),
    budget=st.integers(1, 100),
    ranks=st.integers(1, 4),
    with_atoms=st.booleans(),
    seed=st.integers(0, 5),
)
def test_plan(batch, epochs, prompts, budget, ranks, with_atoms, seed):
    lengths, groups, atoms = batch
    made = plan_update(
        lengths,
        groups,
        epochs=epochs,
        minibatch_prompts=prompts,
        budget=budget,
        ranks=ranks,
        atom_ids=atoms if with_atoms else None,
        seed=seed,
    )
    count = len(set(groups.tolist()))
    per_epoch = -(-count // (prompts or count))
    assert len(made.minibatches) == epochs * per_epoch
    for epoch in range(epochs):
        steps = made.minibatches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(r for step in steps for r in rows_of(step)) == list(range(len(lengths)))
        for step in steps:
            assert len({int(groups[r]) for r in rows_of(step)}) <= (prompts or count)
        homes = [{int(groups[r]) for r in rows_of(step)} for step in steps]
        assert sum(map(len, homes)) == count, "a group lies in one mini-batch"
    for step in made.minibatches:
        check_micros(step, lengths, budget, ranks, atoms if with_atoms else np.arange(len(lengths)))


def check_micros(step, lengths, budget, ranks, atoms):
    assert len(step.micros) == ranks
    assert len({len(micros) for micros in step.micros}) == 1, "equally many on every rank"
    filled = [micro for micros in step.micros for micro in micros if len(micro)]
    homes = [set(atoms[micro].tolist()) for micro in filled]
    assert sum(map(len, homes)) == len(set().union(*homes)), "an atom lies in one micro-batch"
    for micro, ids in zip(filled, homes, strict=True):
        assert lengths[micro].sum() <= budget or len(ids) == 1


@settings(max_examples=40, deadline=None)
@given(batch=batches(), budget=st.integers(1, 100), ranks=st.integers(1, 4))
def test_infer_plan(batch, budget, ranks):
    lengths, _, _ = batch
    made = infer_plan(lengths, budget, ranks)
    assert rows_of(made) == list(range(len(lengths)))
    check_micros(made, lengths, budget, ranks, np.arange(len(lengths)))


def test_the_seed_decides_the_order_and_one_step_needs_none():
    lengths, groups = np.full(12, 5), np.repeat(np.arange(6), 2)

    def order(seed, prompts):
        made = plan_update(
            lengths, groups, epochs=2, minibatch_prompts=prompts, budget=20, seed=seed
        )
        return [rows_of(step) for step in made.minibatches]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2)[:3] != order(1, 2)[3:], "epochs differ"
    assert order(1, 0) == order(2, 0) == [list(range(12))] * 2


def test_groups_are_found_by_id_not_by_position():
    groups = np.array([5, 9, 5, 9, 5])
    made = plan_update(np.ones(5, int), groups, epochs=1, minibatch_prompts=1, budget=99)
    assert sorted(rows_of(step) for step in made.minibatches) == [[0, 2, 4], [1, 3]]


def test_long_rows_are_together_and_ranks_are_balanced():
    lengths = np.array([100, 1, 100, 1, 100, 1, 100, 1])
    made = infer_plan(lengths, 200, 2)
    for micros in made.micros:
        assert sum(int(lengths[m].sum()) for m in micros) == 202
        assert [lengths[m].tolist() for m in micros] == [[100, 100], [1, 1]]


@settings(max_examples=60, deadline=None)
@given(batch=batches(), budget=st.integers(1, 100), ranks=st.integers(1, 4))
def test_a_rank_has_an_empty_micro_batch_only_where_it_has_too_few_rows(batch, budget, ranks):
    lengths, _, _ = batch
    for micros in infer_plan(lengths, budget, ranks).micros:
        rows = sum(map(len, micros))
        assert sum(1 for micro in micros if len(micro)) == min(rows, len(micros))


def test_equal_rows_fill_as_many_micro_batches_as_the_other_rank_has():
    """Three long rows on one rank are three micro-batches; four short ones are cut to three too."""
    lengths = np.array([10, 10, 10, 8, 8, 8, 8])
    made = infer_plan(lengths, 16, 2)
    sizes = sorted(sorted(len(m) for m in micros) for micros in made.micros)
    assert sizes == [[1, 1, 1], [1, 1, 2]]


def test_imbalance_is_by_operations_over_the_mean_rank():
    one = infer_plan(np.array([10, 20, 30]), 100)
    assert one.imbalance == 0.0
    uneven = infer_plan(np.array([4000]), 100, 2)
    assert uneven.imbalance == 1.0
    groups = np.arange(4)
    plan = plan_update(
        np.array([8, 8, 8, 4]),
        groups,
        epochs=2,
        minibatch_prompts=0,
        budget=9,
        ranks=2,
        width=10**9,
    )
    assert plan.imbalance == pytest.approx(16 / 14 - 1)
    for _, mine in plan.parts(2):
        assert mine.imbalance == plan.imbalance
    wide = [
        plan_update(
            np.array([96, 32, 32, 32]),
            groups,
            epochs=1,
            minibatch_prompts=0,
            budget=999,
            ranks=2,
            width=width,
        )
        for width in (10**9, 1)
    ]
    assert wide[0].imbalance == pytest.approx(0.0, abs=1e-6)
    assert wide[1].imbalance > 0.3, "attention makes the long row the longer side"


def test_an_empty_batch_has_no_step():
    none = np.zeros(0, np.int64)
    assert plan_update(none, none, epochs=2, minibatch_prompts=0, budget=9).minibatches == ()
    assert infer_plan(none, 9, 2).micros == ((), ())
    for rows, mine in UpdatePlan(()).parts(3):
        assert len(rows) == len(mine.minibatches) == 0

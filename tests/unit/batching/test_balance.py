"""Dealing is a partition, as even as a plain reference, and as even as the issue asks."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.batching.balance import WIDTH, deal, imbalance, sequence_costs, width_of

COSTS = st.lists(st.integers(0, 1000), max_size=40).map(lambda c: np.array(c, np.float64))


def loads(costs, dealt, ranks):
    return np.bincount(dealt, weights=costs, minlength=ranks)


@settings(max_examples=200, deadline=None)
@given(costs=COSTS, ranks=st.integers(1, 9), equal=st.booleans())
def test_every_item_goes_to_one_rank(costs, ranks, equal):
    before = costs.copy()
    dealt = deal(costs, ranks, equal_counts=equal)
    assert dealt.shape == costs.shape
    assert ((dealt >= 0) & (dealt < ranks)).all()
    assert np.array_equal(costs, before)
    assert np.array_equal(dealt, deal(costs, ranks, equal_counts=equal)), "the same again"
    if equal:
        counts = np.bincount(dealt, minlength=ranks)
        assert counts.max() - counts.min() <= 1


@settings(max_examples=200, deadline=None)
@given(costs=COSTS, ranks=st.integers(1, 9))
def test_no_rank_is_far_above_what_must_be(costs, ranks):
    """Graham's bound for giving each item to the least loaded rank; a move only lowers it."""
    most = loads(costs, deal(costs, ranks), ranks).max()
    assert most <= costs.sum() / ranks + (1 - 1 / ranks) * costs.max(initial=0.0) + 1e-9


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=7), ranks=st.integers(2, 3))
def test_nearly_the_best_of_all_ways(costs, ranks):
    costs = np.array(costs, np.float64)
    ways = itertools.product(range(ranks), repeat=len(costs))
    best = min(loads(costs, np.array(way), ranks).max() for way in ways)
    assert best <= loads(costs, deal(costs, ranks), ranks).max() <= best * 7 / 6 + 1e-9


DISTRIBUTIONS = {
    "lognormal": lambda g: np.clip(g.lognormal(6.5, 1.0, 8192), 1, 32768).astype(np.int64) + 256,
    "uniform": lambda g: g.integers(64, 8192, 8192),
    "geometric": lambda g: np.minimum(g.geometric(1 / 1024, 8192), 8192) + 512,
    "cut": lambda g: np.where(g.random(8192) < 0.3, 8192, g.integers(200, 3000, 8192)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("equal", [False, True])
def test_8192_sequences_to_128_ranks_are_within_one_per_cent(name, equal):
    costs = sequence_costs(DISTRIBUTIONS[name](np.random.default_rng(0)))
    got = loads(costs, deal(costs, 128, equal_counts=equal), 128)
    assert (got.max() - got.min()) / got.mean() < 0.01


def test_moves_and_swaps_even_out_what_greedy_leaves():
    """Greedy gives 3+2+2 | 3+2; the even way is 3+3 | 2+2+2."""
    costs = np.array([3.0, 3, 2, 2, 2])
    assert imbalance(costs, deal(costs, 2), 2) == 0.0


def test_attention_counts():
    """One row of 8 h tokens costs more than eight of h: 8 h (1 + 8/12) against 8 h (1 + 1/12)."""
    h = 64
    one, eight = sequence_costs(np.array([8 * h]), h), sequence_costs(np.full(8, h), h)
    assert one[0] / eight.sum() == pytest.approx((1 + 8 / 12) / (1 + 1 / 12))
    assert sequence_costs(np.array([8 * h]), 64 * h)[0] / (8 * h) == pytest.approx(1, abs=0.02)


def test_imbalance_is_what_the_busiest_rank_works_longer_than_the_mean():
    costs, dealt = np.array([3.0, 1.0, 2.0]), np.array([0, 1, 1])
    assert imbalance(costs, dealt, 2) == 0.0
    assert imbalance(costs, np.zeros(3, np.int64), 2) == 1.0
    assert imbalance(costs, np.zeros(3, np.int64), 3) == 2.0
    assert imbalance(np.zeros(0), np.zeros(0, np.int64), 3) == 0.0


def test_the_width_is_read_from_the_models_config(tmp_path):
    assert width_of(str(tmp_path)) == WIDTH
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 96}))
    assert width_of(str(tmp_path)) == 96
    (tmp_path / "config.json").write_text("{}")
    assert width_of(str(tmp_path)) == WIDTH

"""Pairs are found by id, in any order; their loss is Bradley-Terry's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlframe.ops import pair_rows, preference_loss


@given(st.permutations(range(8)))
def test_rows_in_any_order_make_the_same_pairs(order):
    ids = torch.tensor([5, 5, 2, 2, 9, 9, 4, 4])[list(order)]
    chosen = torch.tensor([True, False] * 4)[list(order)]
    better, worse = pair_rows(ids, chosen)
    assert ids[better].tolist() == ids[worse].tolist() == [2, 4, 5, 9]
    assert chosen[better].all()
    assert not chosen[worse].any()


@pytest.mark.parametrize(
    ("ids", "chosen"),
    [
        ([1, 1], [True, True]),
        ([1, 2], [True, False]),
        ([1, 1, 1, 1], [True, False] * 2),
        ([1], [True]),
    ],
)
def test_half_a_pair_is_an_error(ids, chosen):
    with pytest.raises(ValueError, match="pair"):
        pair_rows(torch.tensor(ids), torch.tensor(chosen, dtype=torch.bool))


def test_no_rows_are_no_pairs():
    better, worse = pair_rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))
    assert len(better) == len(worse) == 0


@pytest.mark.parametrize("margin", [-800.0, -2.0, 0.0, 3.0, 800.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_finite_and_right_at_extreme_margins(margin, smoothing):
    def nll(x):
        return math.log1p(math.exp(-x)) if x > -30 else -x

    wanted = (1 - smoothing) * nll(margin) + smoothing * nll(-margin)
    x = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
    got = preference_loss(x, smoothing)
    got.sum().backward()
    assert float(got.detach()) == pytest.approx(wanted, rel=1e-9)
    slope = smoothing - 1 / (1 + math.exp(margin)) if margin < 700 else smoothing
    assert float(x.grad) == pytest.approx(slope, abs=1e-9)

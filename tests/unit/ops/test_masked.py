"""Masked statistics never read what lies outside the mask."""

from __future__ import annotations

import pytest
import torch

from rlframe.ops import masked_mean, masked_var, masked_whiten
from rlframe.ops.masked import local_total

MASK = torch.tensor([[True, True, False], [True, False, True]])
VALUES = torch.tensor([[1.0, 2.0, float("nan")], [3.0, float("inf"), 6.0]])


def test_mean_and_population_variance():
    assert float(masked_mean(VALUES, MASK)) == pytest.approx(3.0)
    assert float(masked_var(VALUES, MASK)) == pytest.approx((4 + 1 + 0 + 9) / 4)


def test_whiten_is_zero_outside_and_standard_inside():
    white = masked_whiten(VALUES, MASK)
    assert white.dtype == VALUES.dtype
    assert (white[~MASK] == 0).all()
    assert float(white[MASK].mean()) == pytest.approx(0, abs=1e-6)
    assert float(white[MASK].var(correction=0)) == pytest.approx(1, abs=1e-5)


def test_empty_mask_and_constant_values():
    none = torch.zeros_like(MASK)
    assert float(masked_mean(VALUES, none)) == 0
    assert (masked_whiten(VALUES, none) == 0).all()
    assert (masked_whiten(torch.full((2, 3), 0.35), MASK).abs() < 1e-3).all()


def test_sums_over_ranks_are_used():
    """Two halves that share their totals whiten as the whole does."""
    whole = masked_whiten(VALUES, MASK)

    def whole_total(values, mask):
        del mask
        # What an all-reduce would give: each call sums the same expression over both halves.
        return totals.pop(0)

    inside = VALUES[MASK].double()
    count, total = torch.tensor(4.0, dtype=torch.float64), inside.sum()
    centred = inside - (total / count).float()
    shared = [count, total, centred.sum(), centred.square().sum()]
    halves = []
    for row in range(2):
        totals = list(shared)
        halves.append(masked_whiten(VALUES[row : row + 1], MASK[row : row + 1], whole_total))
        assert not totals
    torch.testing.assert_close(torch.cat(halves), whole)


def test_whiten_where_more_is_filled_than_counted():
    got = masked_whiten(
        VALUES[:, :1], MASK[:, :1] & torch.tensor([[True], [False]]), where=MASK[:, :1]
    )
    assert got.tolist() == [[0.0], [pytest.approx(2e4)]]


def test_a_large_mean_costs_no_precision():
    values = 1e4 + torch.linspace(-1, 1, 1001)[None]
    white = masked_whiten(values, torch.ones_like(values, dtype=torch.bool)).double()
    assert float(white.mean()) == pytest.approx(0, abs=1e-6)
    assert float(white.var(correction=0)) == pytest.approx(1, abs=1e-6)


def test_a_sum_of_many_small_numbers_is_exact():
    values = torch.full((1000, 1001), 0.1)
    mask = torch.ones_like(values, dtype=torch.bool)
    assert float(local_total(values, mask)) == pytest.approx(
        1001000 * float(values[0, 0]), rel=1e-12
    )
    assert float(local_total(mask, mask)) == 1001000
    assert float(local_total(values.bfloat16(), mask)) == pytest.approx(1001000 * 0.1, rel=1e-2)


@pytest.mark.parametrize("size", [1e30, 3e38])
def test_values_whose_squares_are_beyond_float32_are_whitened(size):
    values = size * torch.tensor([[1.0, -1.0, 0.5, -0.5]]).repeat(3, 1)
    white = masked_whiten(values, torch.ones_like(values, dtype=torch.bool))
    assert white.dtype == torch.float32
    torch.testing.assert_close(white, masked_whiten(values / size, torch.ones(3, 4) > 0))

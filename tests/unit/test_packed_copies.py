"""Rows are copied one by one where they are long, by an index where they are short: the same."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe.batching.packed import Packed, ragged_take


@pytest.mark.parametrize("longest", [3, 100])
@pytest.mark.parametrize("width", [(), (2,)])
def test_ragged_take_copies_the_named_stretches(longest, width):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 99, (500, *width))
    lengths = rng.integers(0, longest + 1, 40)
    starts = rng.integers(0, 500 - longest, 40)
    expected = np.concatenate([values[s : s + n] for s, n in zip(starts, lengths, strict=True)])
    found = ragged_take(values, starts, lengths)
    assert np.array_equal(found, expected)
    assert not np.shares_memory(found, values)


@pytest.mark.parametrize("longest", [0, 3, 100])
@pytest.mark.parametrize("parts", [1, 3])
def test_blocks_are_joined_in_any_order(longest, parts):
    rng = np.random.default_rng(1)
    blocks = [
        Packed(rng.integers(0, 99, int(lengths.sum())).astype(np.int32), lengths)
        for lengths in rng.integers(0, longest + 1, (parts, 7))
    ]
    rows = [row for block in blocks for row in block.rows()]
    order = rng.permutation(len(rows))[:11]
    found = Packed.concat(blocks, order)
    assert found.values.dtype == np.int32
    assert [row.tolist() for row in found.rows()] == [rows[i].tolist() for i in order]
    assert len(Packed.concat(blocks, order[:0])) == 0


def test_blocks_without_lengths_are_joined_in_order():
    blocks = [Packed(np.arange(3)), Packed(np.arange(3, 5))]
    assert Packed.concat(blocks, np.array([4, 0])).values.tolist() == [4, 0]

"""Packed columns against lists of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe import BatchError
from rlframe.batching.packed import Packed, ragged_index

ragged = st.lists(st.lists(st.integers(-5, 1 << 40), max_size=5), max_size=7)


def as_lists(packed: Packed) -> list[list[int]]:
    return [row.tolist() for row in packed.rows()]


@given(rows=ragged)
def test_rows_padded_and_back(rows):
    packed = Packed.from_rows(rows, "int64")
    assert len(packed) == len(rows)
    assert as_lists(packed) == rows
    width = max(map(len, rows), default=0)
    for left in (False, True):
        padded = packed.padded(left=left)
        pads = [[0] * (width - len(row)) for row in rows]
        wanted = [p + r if left else r + p for r, p in zip(rows, pads, strict=True)]
        assert padded.shape == (len(rows), width)
        assert padded.tolist() == wanted
        assert as_lists(Packed.from_padded(padded, packed.lengths, left=left)) == rows


@given(rows=ragged.filter(bool), data=st.data())
def test_take_and_concat(rows, data):
    packed = Packed.from_rows(rows, "int64")
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    taken = packed.take(np.array(chosen, np.int64))
    assert as_lists(taken) == [rows[i] for i in chosen]
    assert as_lists(Packed.concat([taken, packed, taken])) == as_lists(taken) + rows + as_lists(
        taken
    )


def test_wider_garbage_outside_the_lengths_is_dropped():
    padded = np.array([[1, 2, 99], [99, 99, 99]])
    lengths = np.array([2, 0])
    assert as_lists(Packed.from_padded(padded, lengths)) == [[1, 2], []]
    assert as_lists(Packed.from_padded(padded[:, ::-1], lengths, left=True)) == [[2, 1], []]


def test_rows_of_vectors_and_dense_columns():
    rows = [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]
    packed = Packed.from_rows(rows, "float32")
    assert packed.padded().shape == (3, 2, 2)
    assert packed.take(np.array([2, 1])).padded().tolist() == [[[5, 6]], [[0, 0]]]
    dense = Packed(np.arange(6).reshape(3, 2))
    assert len(dense) == 3
    assert dense.take(np.array([2, 0])).padded().tolist() == [[4, 5], [0, 1]]
    assert [row.tolist() for row in dense.rows()] == [[0, 1], [2, 3], [4, 5]]
    assert dense.nbytes == 48
    assert packed.nbytes == 3 * 2 * 4 + 3 * 8


def test_padded_data_must_fit():
    for shape, lengths in (((2, 3), [4, 1]), ((2, 3), [1]), ((2,), [1, 1])):
        with pytest.raises(BatchError, match="padded data of shape"):
            Packed.from_padded(np.zeros(shape), np.array(lengths))


def test_ragged_index():
    got = ragged_index(np.array([10, 0, 5]), np.array([2, 0, 3]))
    assert got.tolist() == [10, 11, 5, 6, 7]

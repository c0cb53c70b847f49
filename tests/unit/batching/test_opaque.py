"""What opaque rows weigh, and reading some of them without the others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.batching.opaque import PickledRows, bytes_of
from rlframe.batching.packed import Packed


def column(*values: Any) -> np.ndarray:
    out = np.empty(len(values), object)
    for row, value in enumerate(values):
        out[row] = value
    return out


@dataclass
class Picture:
    pixels: Any
    name: str


WEIGHTS = {
    "no rows": ((), 0),
    "text": (("abc", "é"), 3 + 2),
    "a lone surrogate": (("\ud800",), 3),
    "bytes": ((b"12345",), 5),
    "numbers": ((None, True, 3, 0.5), 4 * 8),
    "messages": (([{"role": "user", "content": "hello"}],), 4 + 4 + 7 + 5),
    "arrays": ((np.zeros((3, 2), np.float32),), 24),
    "an object": ((Picture(np.zeros(10, np.uint8), "ab"),), len("pixels") + 10 + len("name") + 2),
    "a module and a class": ((sys, Picture), sys.getsizeof(sys) + sys.getsizeof(Picture)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_opaque_rows_weigh_what_they_hold(name):
    values, expected = WEIGHTS[name]
    assert bytes_of(column(*values)) == expected


def test_what_occurs_twice_counts_once_and_a_circle_ends():
    text, circle = "x" * 100, [1]
    circle.append(circle)
    assert bytes_of(column(text, [text], text)) == 100
    assert bytes_of(column(circle)) == 8


def test_numbers_weigh_their_buffer_and_a_packed_column_its_texts():
    assert bytes_of(np.zeros((3, 2), np.float32)) == 24
    assert Packed(column("x" * 50, "y")).nbytes == 51


values = st.one_of(
    st.none(), st.text(), st.integers(), st.dictionaries(st.text(max_size=3), st.floats(0, 1))
)


@given(rows=st.lists(values, max_size=6), data=st.data())
def test_any_rows_come_back_in_any_order(rows, data):
    stored = PickledRows.of(column(*rows))
    most = 8 if rows else 0
    chosen = data.draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=most))
    found = stored.rows(np.array(chosen, np.int64))
    assert found.dtype == object
    assert found.tolist() == [rows[i] for i in chosen]


class Bomb:
    """Goes off where it is unpickled."""

    def __reduce__(self):
        return _off, ()


def _off():
    raise LookupError("this row was not asked for")


def test_only_the_rows_that_are_asked_for_are_made_and_counted():
    stored = PickledRows.of(column("a" * 1000, Bomb(), "b" * 10))
    found = stored.rows(np.array([2, 0, 2]))
    assert found.tolist() == ["b" * 10, "a" * 1000, "b" * 10]
    with pytest.raises(LookupError, match="not asked for"):
        stored.rows(np.array([1]))
    assert 10 <= stored.bytes_of(np.array([2, 2])) < 60
    assert 1000 <= stored.bytes_of(np.array([0])) < 1060


def test_rows_that_are_one_object_share_their_bytes():
    message = [{"content": "x" * 1000}]
    stored = PickledRows.of(column(message, message, [{"content": "x" * 1000}]))
    assert 2000 < stored.data.nbytes < 2500
    first, second, other = stored.rows(np.arange(3))
    assert first is second
    assert first is not other
    assert first == other == message


def test_objects_of_a_notebook_are_kept_by_value():
    local = {"scope": 3}
    stored = PickledRows.of(column(lambda: local["scope"]))
    (found,) = stored.rows(np.array([0]))
    assert found() == 3

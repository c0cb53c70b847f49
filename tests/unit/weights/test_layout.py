"""Boxes against sets of indices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece, Plan

extents = st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2)


def cells(box: Box) -> set[tuple[int, ...]]:
    starts, sizes = box.offset, box.shape
    return {(i + starts[0], j + starts[1]) for i in range(sizes[0]) for j in range(sizes[1])}


def box_of(pairs):
    return Box(tuple(o for o, _ in pairs), tuple(n for _, n in pairs))


@given(a=extents, b=extents)
def test_intersection(a, b):
    left, right = box_of(a), box_of(b)
    common = left.intersect(right)
    assert common == right.intersect(left)
    assert (cells(common) if common else set()) == cells(left) & cells(right)
    assert left.size == len(cells(left))


@given(a=extents, b=extents)
def test_slices_reach_the_same_elements_whole_and_in_a_buffer(a, b):
    whole = np.arange(64).reshape(8, 8)
    left = box_of(a)
    common = left.intersect(box_of(b))
    if common is not None:
        buffer = whole[left.slices()]
        assert np.array_equal(buffer[common.slices(left)], whole[common.slices()])


def test_full_layout_and_equal_boxes():
    params = {"w": ParamInfo((2, 3), "float32"), "scale": ParamInfo((), "float32")}
    full = Layout.full(params, ranks=2)
    assert full.world == 2
    assert full.ranks[0] == full.ranks[1]
    assert full.ranks[0][0].view == LocalView("w", 0, (3, 1))
    assert full.ranks[0][1].box.size == 1
    other_storage = tuple(
        Piece(p.name, p.box, LocalView("flat", 9, p.view.stride)) for p in full.ranks[0]
    )
    assert full.same_boxes(Layout(params, (other_storage, full.ranks[1])))
    assert not full.same_boxes(Layout.full(params, ranks=1))
    halves = tuple(
        (Piece("w", Box((r, 0), (1, 3)), LocalView("w", 0, (3, 1))), full.ranks[0][1])
        for r in range(2)
    )
    assert not full.same_boxes(Layout(params, halves))


def test_another_type_needs_storage_of_its_own_but_no_move():
    layout = Layout.full({"a": ParamInfo((2, 3), "float32")}, 2)
    narrow = layout.typed("bfloat16")
    assert narrow.params["a"] == ParamInfo((2, 3), "bfloat16")
    assert narrow.ranks == layout.ranks
    assert layout.typed("auto") is layout
    assert Plan(layout, layout, ()).shared
    assert not Plan(layout, narrow, ()).shared

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece
from rlframe_plugins.resharders.planner import missing_moves, without
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy


def piece(name: str, box: Box) -> Piece:
    strides, step = [], 1
    for extent in reversed(box.shape):
        strides.append(step)
        step *= extent
    return Piece(name, box, LocalView(name, 0, tuple(reversed(strides))))


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offset, extent = [], []
    for n in shape:
        low = draw(st.integers(0, n - 1))
        offset.append(low)
        extent.append(draw(st.integers(1, n - low)))
    return Box(tuple(offset), tuple(extent))


def mark(shape: tuple[int, ...], found: list[Box]) -> np.ndarray:
    cells = np.zeros(shape, int)
    for box in found:
        cells[box.slices()] += 1
    return cells


@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
def test_a_box_without_another_is_disjoint_boxes_that_cover_the_rest(data, shape):
    box, hole = data.draw(boxes(shape)), data.draw(boxes(shape))
    rest = mark(shape, without(box, hole))
    expected = mark(shape, [box]) * (1 - mark(shape, [hole]))
    np.testing.assert_array_equal(rest, expected)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, Layout]:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2).map(tuple))
    world = draw(st.integers(1, 5))
    params = {"w": ParamInfo(shape, "float32")}

    def some() -> list[list[Piece]]:
        each = st.lists(boxes(shape), max_size=2)
        return [[piece("w", b) for b in draw(each)] for _ in range(world)]

    source = some()
    whole = Box((0,) * len(shape), shape)
    source[draw(st.integers(0, world - 1))].append(piece("w", whole))
    return (
        Layout(params, tuple(map(tuple, source))),
        Layout(params, tuple(map(tuple, some()))),
    )


@settings(deadline=None, max_examples=200)
@given(layouts())
def test_every_rank_receives_just_what_it_lacks_from_ranks_that_hold_it(pair):
    source, target = pair
    shape = source.params["w"].shape
    moves = missing_moves(source, target)
    for rank in range(target.world):
        mine = mark(shape, [p.box for p in source.ranks[rank]]) > 0
        for box in {p.box for p in target.ranks[rank]}:
            lacks = (mark(shape, [box]) > 0) & ~mine
            got = [m.box for m in moves if m.target == rank and box.intersect(m.box) == m.box]
            assert ((mark(shape, got) > 0) >= lacks).all()
        got_all = mark(shape, [m.box for m in moves if m.target == rank]) > 0
        assert not (got_all & mine).any()
    for move in moves:
        held = mark(shape, [p.box for p in source.ranks[move.source]]) > 0
        assert held[move.box.slices()].all()
        assert move.source != move.target


def test_owners_share_the_sending() -> None:
    params = {f"w{i}": ParamInfo((4,), "float32") for i in range(6)}
    whole = tuple(piece(name, Box((0,), (4,))) for name in params)
    source = Layout(params, (whole, whole, ()))
    target = Layout(params, ((), (), whole))
    moves = missing_moves(source, target)
    assert [sum(m.source == s for m in moves) for s in (0, 1)] == [3, 3]


def test_the_own_node_sends_first() -> None:
    params = {"w": ParamInfo((4,), "float32")}
    whole = (piece("w", Box((0,), (4,))),)
    source = Layout(params, (whole, (), whole, ()))
    target = Layout(params, ((), whole, (), whole))
    moves = missing_moves(source, target, node_size=2)
    assert {(m.source, m.target) for m in moves} == {(0, 1), (2, 3)}


def test_equal_layouts_need_no_move() -> None:
    params = {"w": ParamInfo((4,), "float32")}
    layout = Layout(params, ((piece("w", Box((0,), (2,))),), (piece("w", Box((2,), (2,))),)))
    assert ZeroRedundancy(ZeroRedundancy.Config()).plan(layout, layout).moves == ()


def test_fsdp_to_strided_tensor_parallel_groups_needs_a_quarter() -> None:
    """F = 4 shards to tg = 2: (F - tg) / (F tg) M a rank when groups are strided."""
    params = {"w": ParamInfo((8,), "float32")}
    source = Layout(params, tuple((piece("w", Box((2 * r,), (2,))),) for r in range(4)))
    half = [Box((0,), (4,)), Box((4,), (4,))]
    target = Layout(params, tuple((piece("w", half[r // 2]),) for r in range(4)))
    moves = missing_moves(source, target)
    assert [sum(m.box.size for m in moves if m.target == r) for r in range(4)] == [2, 2, 2, 2]

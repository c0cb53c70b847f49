"""Adapters added to weights give the same elements however the weights are cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.weights.adapters import Adapters, LowRank
from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece
from rlframe.weights.merging import MergedWeights, merge
from rlframe.weights.sharding import flat_layout
from rlframe.weights.storage import local_view

CPU = torch.device("cpu")


def low_rank(rows: int, columns: int, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(rank, columns), torch.randn(rows, rank)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99), st.data())
def test_any_box_gives_the_elements_of_the_whole(rows, columns, rank, seed, data):
    down, up = low_rank(rows, columns, rank, seed)
    weight = torch.randn(rows, columns)
    whole = torch.empty_like(weight)
    merge(whole, weight, (down, up), 0.7, Box((0, 0), (rows, columns)))
    expected = weight.double() + 0.7 * up.double() @ down.double()
    assert torch.equal(whole, expected.float()) or torch.allclose(
        whole, expected.float(), rtol=2e-7
    )
    top = data.draw(st.integers(0, rows - 1))
    left = data.draw(st.integers(0, columns - 1))
    box = Box((top, left), (rows - top, columns - left))
    part = torch.empty(box.shape)
    merge(part, weight[box.slices()], (down, up), 0.7, box)
    assert torch.equal(part, whole[box.slices()])


@pytest.mark.parametrize("world", [1, 3])
def test_flat_shards_are_merged_where_they_lie(world):
    params = {"w": ParamInfo((5, 4), "float32"), "v": ParamInfo((3,), "float32")}
    layout = flat_layout(params, world)
    down, up = low_rank(5, 4, 2, 0)
    names = {"a": ParamInfo((2, 4), "float32"), "b": ParamInfo((5, 2), "float32")}
    adapters = Adapters(Layout.full(names), {"w": LowRank("a", "b")}, 2.0)
    whole = {"w": torch.randn(5, 4), "v": torch.randn(3)}
    expected = (whole["w"].double() + 2 * up.double() @ down.double()).float()
    for rank in range(world):
        base = {}
        for name in params:
            flat = whole[name].reshape(-1)
            size = -(-len(flat) // world)
            base[name] = flat[rank * size : (rank + 1) * size].clone()
        merged = MergedWeights(layout.ranks[rank], params, adapters, CPU)
        out = merged.fill(base, {"a": down, "b": up})
        assert out["v"] is base["v"]
        for piece in layout.ranks[rank]:
            if piece.name == "w":
                found = local_view(piece, out["w"])
                torch.testing.assert_close(found, expected[piece.box.slices()], rtol=1e-6, atol=0)


def test_a_buffer_of_several_parameters_is_copied_where_one_of_them_changes():
    params = {n: ParamInfo((2, 3), "float32") for n in ("q", "k")}
    box = Box((0, 0), (2, 3))
    pieces = tuple(Piece(n, box, LocalView("qk", i * 6, (3, 1))) for i, n in enumerate(params))
    names = {"a": ParamInfo((1, 3), "float32"), "b": ParamInfo((2, 1), "float32")}
    adapters = Adapters(Layout.full(names), {"k": LowRank("a", "b")}, 1.0)
    buffer = torch.arange(12.0)
    merged = MergedWeights(pieces, params, adapters, CPU)
    out = merged.fill({"qk": buffer}, {"a": torch.ones(1, 3), "b": torch.ones(2, 1)})["qk"]
    assert out.tolist() == [*range(6), *(float(n + 1) for n in range(6, 12))]
    assert buffer.tolist() == [float(n) for n in range(12)]
    again = merged.fill({"qk": buffer}, {"a": torch.zeros(1, 3), "b": torch.ones(2, 1)})["qk"]
    assert again.data_ptr() == out.data_ptr()
    assert torch.equal(again, buffer)
    assert merged.nbytes == 48

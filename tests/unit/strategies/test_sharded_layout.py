"""Layouts of fsdp from sizes alone: every element once a replica, in the order that torch has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.layout import Layout, ParamInfo
from rlframe.weights.sharding import Cut, grid_layout
from rlframe_strategies.grid import Sizes
from rlframe_strategies.sharded_layout import sharded_layout

PARAMS = {
    "rows": ParamInfo((23, 3), "float32"),
    "columns": ParamInfo((5, 12), "float32"),
    "heads": ParamInfo((24, 2), "float32"),
    "bias": ParamInfo((24,), "float32"),
    "norm": ParamInfo((7,), "float32"),
}
CUTS = {
    "rows": Cut(axis=0),
    "columns": Cut(axis=1),
    "heads": Cut(axis=0, units=2),
    "bias": Cut(axis=0, units=2),
    "norm": Cut(layer=0),
}


@dataclass(frozen=True)
class Options:
    tp: int = 1
    cp: int = 1
    replicas: int = 1


def layout_of(sizes: Sizes) -> Layout:
    return sharded_layout(grid_layout(PARAMS, CUTS, Mesh(tp=sizes.tp)), sizes)


sizes = st.builds(
    lambda inside, replicas, cp, tp: Sizes(inside * replicas, replicas, cp, tp),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
)


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_each_replica_holds_every_element_and_replicas_are_alike(sizes: Sizes) -> None:
    layout = layout_of(sizes)
    assert layout.world == sizes.world
    size = sizes.world // sizes.replicas
    replicas = [layout.ranks[i * size : (i + 1) * size] for i in range(sizes.replicas)]
    assert all(replica == replicas[0] for replica in replicas)
    for name, info in PARAMS.items():
        count = torch.zeros(info.shape)
        for pieces in replicas[0]:
            for piece in pieces:
                if piece.name == name:
                    count[piece.box.slices()] += 1
        held = {"norm": sizes.tp, "heads": max(sizes.tp // 2, 1), "bias": max(sizes.tp // 2, 1)}
        assert bool((count == held.get(name, 1)).all()), name


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_shards_are_chunks_of_a_tensor_ranks_own_part(sizes: Sizes) -> None:
    whole = torch.arange(23.0 * 3).view(23, 3)
    layout = layout_of(sizes)
    for rank, pieces in enumerate(layout.ranks):
        place = sizes.place(rank)
        mine = whole.split(-(-23 // sizes.tp))[place.tensor]
        chunks = [*mine.chunk(sizes.shards), *[mine[:0]] * sizes.shards]
        (piece,) = [p for p in pieces if p.name == "rows"]
        assert torch.equal(whole[piece.box.slices()], chunks[place.shard])
        assert piece.view.stride == (3, 1)


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_places_are_the_ranks_and_blocks_of_equal_rows_are_neighbours(sizes: Sizes) -> None:
    places = [sizes.place(rank) for rank in range(sizes.world)]
    assert len({(p.replica, p.shard, p.tensor) for p in places}) == sizes.world
    mesh = Mesh(dp=sizes.dp, tp=sizes.cp * sizes.tp)
    for rank, place in enumerate(places):
        assert mesh.tp_rank(rank) == place.context * sizes.tp + place.tensor
        inside = sizes.dp // sizes.replicas
        assert mesh.dp_rank(rank) == place.replica * inside + place.shard // sizes.cp


@pytest.mark.parametrize(
    ("options", "world", "message"),
    [
        (Options(tp=2), 3, r"strategy.tp=2 x strategy.cp=1 does not divide 3 ranks"),
        (Options(tp=2, cp=2), 6, r"multiple of 4 devices"),
        (Options(tp=2, replicas=2), 2, r"strategy.replicas=2 does not divide 1 data-parallel"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(options: Options, world: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sizes.of(options, world)

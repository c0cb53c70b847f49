"""Experts dealt to ranks: views against slices of whole tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import MixtralConfig, Qwen3MoeConfig

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.fusing import experts_apart
from rlframe.weights.layout import ParamInfo
from rlframe.weights.sharding import Cut, ExpertGrid, flat_layout, grid_layout
from rlframe_plugins.resharders.planner import missing_moves
from tests.unit.whole_tensors import SIZES, cuts_of, filled, holders, reshard, whole

MODELS = {
    "mixtral": MixtralConfig(**SIZES, intermediate_size=8, num_local_experts=4),
    "qwen": Qwen3MoeConfig(**SIZES, intermediate_size=24, moe_intermediate_size=8, num_experts=8),
}


def numbered(experts: int) -> tuple[dict[str, ParamInfo], dict[str, Cut]]:
    """A layer whose experts are modules of their own."""
    params, cuts = {}, {}
    for number in range(experts):
        for leaf, shape, axis in (("up", (8, 6), 0), ("down", (6, 8), 1)):
            name = f"model.layers.0.mlp.experts.{number}.{leaf}.weight"
            params[name] = ParamInfo(shape, "float32")
            cuts[name] = Cut(axis=axis, layer=0, experts=experts, expert=number)
    return params, cuts


meshes = st.builds(
    Mesh, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4])
)
grids = st.builds(
    lambda ep, tp, a, b: ExpertGrid(ep, tp, max(ep // a, 1), max(tp // b, 1)),
    *[st.sampled_from([1, 2, 4])] * 4,
)


def fits(mesh: Mesh, grid: ExpertGrid) -> bool:
    per_stage = mesh.dp * mesh.tp
    generating = mesh.size // mesh.pg
    return not (per_stage % (grid.ep * grid.tp) or generating % (grid.eg * grid.tg))


@settings(deadline=None, max_examples=60)
@given(meshes, grids, st.sampled_from(["mixtral", "qwen", "numbered"]))
def test_every_expert_is_held_once_a_replica(mesh, grid, which):
    assume(fits(mesh, grid))
    mesh = replace(mesh, pp=1, pg=1) if which == "numbered" else mesh
    assume(fits(mesh, grid))
    params, cuts = numbered(4) if which == "numbered" else cuts_of(MODELS[which])
    layout = grid_layout(params, cuts, mesh, experts=grid)
    copies = mesh.dp * mesh.tp // (grid.ep * grid.tp)
    ranks = list(range(mesh.size))
    experts = [name for name, cut in cuts.items() if cut.experts]
    assert experts
    for name in experts:
        assert (holders(layout, name, ranks) == copies).all(), name
    for rank in ranks:
        size = sum(p.box.size for p in layout.ranks[rank] if p.name in experts)
        total = sum(int(np.prod(params[name].shape)) for name in experts)
        assert size * mesh.pp * grid.ep * grid.tp == total


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 15))
def test_a_rank_s_buffer_is_gate_then_up_of_its_part_of_its_experts(ep, tp, rank):
    mesh = Mesh(dp=4, tp=4)
    params, cuts = cuts_of(MODELS["qwen"])
    name = "model.layers.1.mlp.experts.gate_up_proj"
    layout = grid_layout(params, cuts, mesh, experts=ExpertGrid(ep, tp))
    full = whole(params)[name]
    which, part = rank // tp % ep, rank % tp
    gate, up = full.view(8, 2, 8, 16)[8 // ep * which : 8 // ep * (which + 1)].unbind(1)
    width = 8 // tp
    mine = [half[:, width * part : width * (part + 1)] for half in (gate, up)]
    buffer = filled(layout, rank, whole(params))[name]
    assert torch.equal(buffer.reshape(8 // ep, 2 * width, 16), torch.cat(mine, 1))


@settings(deadline=None, max_examples=60)
@given(meshes, grids, st.sampled_from(["mixtral", "numbered"]))
def test_training_experts_lie_inside_those_of_generation(mesh, grid, which):
    mesh = replace(mesh, pp=1 if which == "numbered" else mesh.pp, pg=1)
    assume(fits(mesh, grid))
    params, cuts = numbered(4) if which == "numbered" else cuts_of(MODELS[which])
    train = grid_layout(params, cuts, mesh, experts=grid)
    strided = grid_layout(params, cuts, mesh, "strided", grid)
    for name in (n for n, cut in cuts.items() if cut.experts):
        for rank in range(mesh.size):
            inside = holders(strided, name, [rank])
            assert (holders(train, name, [rank]) <= inside).all()
    moved = {n: 0 for n, cut in cuts.items() if cut.experts}
    for move in missing_moves(train, strided):
        if move.name in moved:
            moved[move.name] += move.box.size
    sizes = {n: int(np.prod(params[n].shape)) for n in moved}
    share = 1 / (mesh.pg * grid.eg * grid.tg) - 1 / (mesh.pp * grid.ep * grid.tp)
    assert sum(moved.values()) == pytest.approx(sum(sizes.values()) * share * mesh.size)


@settings(deadline=None, max_examples=15)
@given(grids, grids, st.sampled_from(["strided", "adjacent"]))
def test_experts_move_from_any_grid_to_any_other(source, target, grouping):
    mesh = Mesh(dp=2, tp=4, tg=2)
    assume(fits(mesh, source) and fits(mesh, target))
    params, cuts = cuts_of(MODELS["mixtral"])
    before = grid_layout(params, cuts, mesh, experts=source)
    after = experts_apart(grid_layout(params, cuts, mesh, grouping, target), cuts)
    reshard(before, after)
    reshard(after, before)
    reshard(flat_layout(params, 8), after)


def test_experts_apart_have_a_buffer_each():
    params, cuts = cuts_of(MODELS["mixtral"])
    layout = experts_apart(grid_layout(params, cuts, Mesh(dp=2), experts=ExpertGrid(2)), cuts)
    full = whole(params)["model.layers.0.mlp.experts.gate_up_proj"]
    buffers = filled(layout, 1, whole(params))
    for expert in (2, 3):
        key = f"model.layers.0.mlp.experts.{expert}.gate_up_proj"
        assert torch.equal(buffers[key].reshape(16, 16), full[expert])
    assert not any("experts.0." in key or "experts.1." in key for key in buffers)


def test_grids_that_do_not_fit_are_refused():
    params, cuts = cuts_of(MODELS["mixtral"])
    with pytest.raises(ConfigError, match="8 ranks a pipeline stage are not replicas of 16"):
        grid_layout(params, cuts, Mesh(dp=8), experts=ExpertGrid(8, 2))
    with pytest.raises(ConfigError, match="4 experts do not divide by 8"):
        grid_layout(params, cuts, Mesh(dp=8), experts=ExpertGrid(8, 1))
    with pytest.raises(ConfigError, match="2 x 1 in training do not lie inside 1 x 2"):
        grid_layout(params, cuts, Mesh(dp=8), "strided", ExpertGrid(2, 1, 1, 2))

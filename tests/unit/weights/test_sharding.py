from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError, ModelError
from rlframe.weights.layout import Layout, ParamInfo
from rlframe.weights.model_cuts import cuts_of_model, meta_model
from rlframe.weights.sharding import Cut, flat_layout, generation_place, grid_layout, stage_of_layer
from rlframe_plugins.resharders.planner import missing_moves
from tests.unit.whole_tensors import holders

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 104,
}


def model(of: type = LlamaConfig, **options):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(of(**{**SIZES, **options}))


MODELS = {
    "llama": model(),
    "tied": model(Qwen2Config, tie_word_embeddings=True),
    "qwen3": model(Qwen3Config, head_dim=16),
    "moe": model(Qwen3MoeConfig, num_experts=4, moe_intermediate_size=32),
}


def cells_of(layout: Layout, rank: int) -> dict[str, np.ndarray]:
    return {name: holders(layout, name, [rank]) > 0 for name in layout.params}


meshes = st.builds(
    lambda d, p, t, a, b: Mesh(d, p, t, p // a if p % a == 0 else p, t // b if t % b == 0 else t),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
)


@settings(deadline=None, max_examples=60)
@given(meshes, st.sampled_from(sorted(MODELS)))
def test_a_training_shard_lies_inside_the_generation_shard(mesh, which):
    params, cuts = cuts_of_model(MODELS[which])
    train = grid_layout(params, cuts, mesh)
    generate = grid_layout(params, cuts, mesh, "strided")
    small = {n: i for n, i in params.items() if cuts[n].layer in (None, 0, 3)}
    for rank in range(mesh.size):
        has, needs = cells_of(train, rank), cells_of(generate, rank)
        for name in small:
            if name == "model.embed_tokens.weight" and which == "tied" and mesh.pp > 1:
                continue
            assert not (has[name] & ~needs[name]).any(), (rank, name)


@settings(deadline=None, max_examples=60)
@given(meshes, st.sampled_from(["strided", "adjacent"]))
def test_generation_places_cover_each_replica_once_a_micro_dp_rank(mesh, grouping):
    for dp in range(mesh.dp):
        inside = range(dp * mesh.pp * mesh.tp, (dp + 1) * mesh.pp * mesh.tp)
        places = [generation_place(mesh, r, grouping) for r in inside]
        for place in set(places):
            assert places.count(place) == mesh.dg
        assert len(set(places)) == mesh.pg * mesh.tg


def test_the_paper_s_example_1_4_2_to_1_2_2_2() -> None:
    params = {"w": ParamInfo((8, 2), "float32")}
    cuts = {"w": Cut(axis=0, layer=0)}
    mesh = Mesh(dp=2, pp=1, tp=4, pg=1, tg=2)
    train = grid_layout(params, cuts, mesh)
    zero = grid_layout(params, cuts, mesh, "strided")
    moves = missing_moves(train, zero)
    whole = 16
    received = [sum(m.box.size for m in moves if m.target == r) for r in range(8)]
    assert received == [whole // 4] * 8
    pairs = {frozenset((m.source, m.target)) for m in moves}
    assert pairs == {frozenset(p) for p in [(0, 1), (2, 3), (4, 5), (6, 7)]}
    vanilla = grid_layout(params, cuts, mesh, "adjacent")
    overlap = [(cells_of(train, r)["w"] & cells_of(vanilla, r)["w"]).any().item() for r in range(8)]
    assert overlap == [True, False, False, True, True, False, False, True]


@settings(deadline=None, max_examples=40)
@given(meshes, st.sampled_from(sorted(MODELS)))
def test_received_elements_equal_the_paper_s_formula_for_layers(mesh, which):
    """(t p - tg pg) / (tg pg t p) M_s, plus (p - pg) / (pg p) M_r, for equal stages."""
    if which == "tied" or mesh.tp > 2:
        return
    params, cuts = cuts_of_model(MODELS[which])
    layers = {n: i for n, i in params.items() if cuts[n].layer is not None}
    moves = missing_moves(
        grid_layout(layers, cuts_for(layers, cuts), mesh),
        grid_layout(layers, cuts_for(layers, cuts), mesh, "strided"),
    )
    size = {n: int(np.prod(i.shape)) for n, i in layers.items()}
    sharded = sum(size[n] for n in layers if cuts[n].axis is not None)
    replicated = sum(size[n] for n in layers if cuts[n].axis is None)
    t, p, tg, pg = mesh.tp, mesh.pp, mesh.tg, mesh.pg
    expected = sharded * (t * p - tg * pg) / (tg * pg * t * p)
    expected += replicated * (p - pg) / (pg * p)
    for rank in range(mesh.size):
        assert sum(m.box.size for m in moves if m.target == rank) == expected


def cuts_for(params, cuts):
    return {name: cuts[name] for name in params}


@given(st.integers(1, 12), st.integers(1, 6))
def test_stages_are_runs_of_layers_whose_lengths_differ_by_one(layers, stages):
    if layers < stages:
        return
    places = [stage_of_layer(i, layers, stages) for i in range(layers)]
    assert places == sorted(places)
    lengths = [places.count(s) for s in range(stages)]
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) == layers


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=3),
    st.integers(1, 7),
)
def test_flat_partitions_cover_each_element_once(shapes, world):
    params = {f"w{i}": ParamInfo(shape, "float32") for i, shape in enumerate(shapes)}
    layout = flat_layout(params, world)
    for name, info in params.items():
        assert (holders(layout, name, list(range(world))) == 1).all()
        total = int(np.prod(info.shape))
        flat = np.arange(total).reshape(info.shape)
        size = -(-total // world)
        for rank in range(world):
            local = np.arange(rank * size, min((rank + 1) * size, total))
            for piece in layout.ranks[rank]:
                if piece.name == name:
                    seen = np.lib.stride_tricks.as_strided(
                        local[piece.view.offset :],
                        piece.box.shape,
                        [s * local.itemsize for s in piece.view.stride],
                    )
                    np.testing.assert_array_equal(seen, flat[piece.box.slices()])


def test_more_ranks_than_key_value_heads_replicate_them():
    params, cuts = cuts_of_model(MODELS["llama"])
    layout = grid_layout(params, cuts, Mesh(tp=4))
    name = "model.layers.0.self_attn.k_proj.weight"
    assert (holders(layout, name, [0, 1, 2, 3]) == 2).all()
    assert (holders(layout, name, [0, 1]) > 0).sum() == (holders(layout, name, [0]) > 0).sum()


def test_gate_and_up_of_fused_experts_are_cut_apart():
    params, cuts = cuts_of_model(MODELS["moe"])
    layout = grid_layout(params, cuts, Mesh(tp=2))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    pieces = [p for p in layout.ranks[1] if p.name == name]
    assert [p.box.offset[1] for p in pieces] == [16, 48]
    assert [p.view.offset for p in pieces] == [0, 16 * 64]


def test_uneven_heads_are_refused():
    params, cuts = cuts_of_model(MODELS["llama"])
    with pytest.raises(ConfigError, match="8 heads do not divide by 3"):
        grid_layout(params, cuts, Mesh(tp=3))
    with pytest.raises(ConfigError, match="4 layers cannot fill 5"):
        grid_layout(params, cuts, Mesh(pp=5))


def test_tied_embeddings_are_on_both_end_stages():
    params, cuts = cuts_of_model(MODELS["tied"])
    layout = grid_layout(params, cuts, Mesh(pp=4))
    holders = [r for r in range(4) if any("embed" in p.name for p in layout.ranks[r])]
    assert holders == [0, 3]


def test_no_config_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="no model description"):
        meta_model(str(tmp_path))

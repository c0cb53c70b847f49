"""Fused buffers and padded vocabularies: views against slices of whole tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.fusing import Fused, fused_layout, fusions_of, padded_vocabulary
from rlframe.weights.layout import Layout, ParamInfo
from rlframe.weights.sharding import Cut, grid_layout
from rlframe.weights.storage import local_view
from rlframe_plugins.resharders.planner import missing_moves
from tests.unit.whole_tensors import SIZES, cuts_of, filled, holders, reshard, whole


def llama(**options):
    sizes = {**SIZES, "intermediate_size": 24, **options}
    return cuts_of(LlamaConfig(**sizes))


ATTENTION = "model.layers.0.self_attn"


def by_query_group(full: dict[str, torch.Tensor], leaf: str, groups: int) -> torch.Tensor:
    """Megatron's order: a group's queries, its key, its value."""
    parts = [full[f"{ATTENTION}.{which}_proj.{leaf}"] for which in "qkv"]
    split = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(split, 1).flatten(0, 1)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_interleaved_rows_are_a_slice_of_the_whole_interleaved_tensor(tp, leaf):
    params, cuts = llama(attention_bias=True)
    layout = fused_layout(
        grid_layout(params, cuts, Mesh(tp=tp)), fusions_of(params, query_groups=4)
    )
    fused = by_query_group(whole(params), leaf, 4)
    rows = len(fused) // tp
    for rank in range(tp):
        buffer = filled(layout, rank, whole(params))[f"{ATTENTION}.qkv.{leaf}"]
        assert torch.equal(buffer, fused[rank * rows : (rank + 1) * rows].reshape(-1))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_stacked_rows_are_each_rank_s_queries_keys_and_values(tp):
    """With 8 ranks and 4 key-value heads two ranks hold each of these."""
    params, cuts = llama()
    layout = fused_layout(grid_layout(params, cuts, Mesh(tp=tp)), fusions_of(params))
    full = whole(params)
    heads = full[f"{ATTENTION}.q_proj.weight"].chunk(tp)
    for rank in range(tp):
        pairs = [full[f"{ATTENTION}.{which}_proj.weight"].chunk(min(tp, 4)) for which in "kv"]
        mine = torch.cat([heads[rank], *(one[rank * len(one) // tp] for one in pairs)])
        buffers = filled(layout, rank, full)
        assert torch.equal(buffers[f"{ATTENTION}.qkv.weight"], mine.reshape(-1))
        gate, up = (
            full[f"model.layers.0.mlp.{which}_proj.weight"].chunk(tp)[rank]
            for which in ("gate", "up")
        )
        together = buffers["model.layers.0.mlp.gate_up.weight"]
        assert torch.equal(together, torch.cat([gate, up]).reshape(-1))


def test_ranks_that_share_a_key_interleave_their_own_queries_with_it():
    params, cuts = llama()
    layout = fused_layout(grid_layout(params, cuts, Mesh(tp=8)), fusions_of(params, query_groups=4))
    full = whole(params)
    q, k, v = (full[f"{ATTENTION}.{which}_proj.weight"] for which in "qkv")
    for rank in range(8):
        mine = torch.cat([q.chunk(8)[rank], k.chunk(4)[rank // 2], v.chunk(4)[rank // 2]])
        buffer = filled(layout, rank, full)[f"{ATTENTION}.qkv.weight"]
        assert torch.equal(buffer, mine.reshape(-1))


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4), (8, 2)]),
    st.sampled_from([1, 4]),
    st.sampled_from([1, 4]),
    st.sampled_from([1, 12, 40]),
    st.booleans(),
)
def test_weights_move_between_any_two_orders(sizes, before, after, multiple, bias):
    tp, tg = sizes
    mesh = Mesh(tp=tp, tg=tg)
    params, cuts = llama(attention_bias=bias)
    padded = padded_vocabulary(params, cuts, multiple * tp)
    train = grid_layout(params, padded, mesh)
    generate = grid_layout(params, cuts, mesh, "strided")
    moved = reshard(
        fused_layout(train, fusions_of(params, query_groups=before)),
        fused_layout(generate, fusions_of(params, query_groups=after)),
    )
    plain = sum(m.box.size for m in missing_moves(train, generate))
    assert moved == plain


def test_rows_that_alternate():
    params = {name: ParamInfo((4, 2), "float32") for name in ("a", "b")}
    cuts = {name: Cut(axis=0, layer=0) for name in params}
    layout = fused_layout(grid_layout(params, cuts, Mesh(tp=2)), [Fused("ab", ("a", "b"), 4)])
    full = whole(params)
    expected = torch.stack([full["a"], full["b"]], 1).reshape(8, 2)
    for rank in range(2):
        mine = expected[4 * rank : 4 * rank + 4]
        assert torch.equal(filled(layout, rank, full)["ab"], mine.reshape(-1))


def test_what_cannot_be_fused_is_named():
    params = {"a": ParamInfo((4, 4), "float32"), "b": ParamInfo((6, 4), "float32")}
    columns = {name: Cut(axis=1, layer=0) for name in params}
    with pytest.raises(ConfigError, match="'a' cannot share a buffer"):
        fused_layout(grid_layout(params, columns, Mesh(tp=2)), [Fused("ab", ("a", "b"))])
    with pytest.raises(ConfigError, match=r"rows \[4, 6\] of a rank do not divide into 3"):
        fused_layout(Layout.full(params), [Fused("ab", ("a", "b"), 3)])


@given(st.integers(5, 40), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3, 16]))
def test_a_padded_vocabulary_fills_the_first_ranks(rows, tp, multiple):
    params = {"embed": ParamInfo((rows, 2), "float32")}
    cuts = padded_vocabulary(params, {"embed": Cut(axis=0)}, multiple * tp)
    share = cuts["embed"].padded // tp
    assert cuts["embed"].padded - rows < multiple * tp
    layout = grid_layout(params, {"embed": replace(cuts["embed"], layer=0)}, Mesh(tp=tp))
    full = whole(params)["embed"]
    padding = torch.full((cuts["embed"].padded - rows, 2), -1.0)
    for rank, mine in enumerate(torch.cat([full, padding]).split(share)):
        (piece,) = layout.ranks[rank]
        assert torch.equal(local_view(piece, mine.clone()), full[piece.box.slices()])
    assert (holders(layout, "embed", list(range(tp))) == 1).all()


def test_a_vocabulary_that_was_padded_too_little_is_refused():
    params = {"embed": ParamInfo((10, 2), "float32")}
    for padded in (8, 13):
        cuts = {"embed": Cut(axis=0, layer=0, padded=padded)}
        with pytest.raises(ConfigError, match=f"padded to {padded}"):
            grid_layout(params, cuts, Mesh(tp=2))

"""Hugging Face's weights in Megatron's parameters and back, bit by bit; needs no megatron."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlframe.calling.protocol import Mesh
from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import ModelSpec
from rlframe.weights.storage import local_view
from rlframe_strategies.loading import read_config
from rlframe_strategies.megatron.arch import Arch
from rlframe_strategies.megatron.placing import chunks_of, key_of, megatron_layout
from rlframe_strategies.megatron.skeleton import fill_weights, skeleton_of
from tests.unit.strategies.megatron.models import KINDS, write_model

SIZES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (1, 4, 1)]


def described(folder, kind="policy"):
    config = read_config(str(folder))
    spec = ModelSpec(str(folder), ModelConfig(path=str(folder)), kind=kind)
    return Arch.read(config), skeleton_of(config, spec, torch.float32)


def shapes(arch: Arch, tp: int, kind: str) -> dict[str, tuple[int, ...]]:
    """What megatron-core's plain modules have on each rank, by the end of the layout's key."""
    width, queries = arch.heads * arch.head_dim // tp, arch.heads // arch.kv_heads
    qkv = arch.kv_heads // tp * (queries + 2) * arch.head_dim
    return {
        "embed_tokens.weight": (-(-arch.vocabulary // tp), arch.hidden),
        "lm_head.weight": (-(-arch.vocabulary // tp), arch.hidden),
        "input_layernorm.weight": (arch.hidden,),
        "post_attention_layernorm.weight": (arch.hidden,),
        "norm.weight": (arch.hidden,),
        "q_norm.weight": (arch.head_dim,),
        "k_norm.weight": (arch.head_dim,),
        "qkv.weight": (qkv, arch.hidden),
        "qkv.bias": (qkv,),
        "o_proj.weight": (arch.hidden, width),
        "gate_up.weight": (2 * arch.ffn // tp, arch.hidden),
        "down_proj.weight": (arch.hidden, arch.ffn // tp),
        "score.weight": (1, arch.hidden),
        "score.bias": (1,),
    }


def filled(folder, layout, arch, tp, kind="policy"):
    """Every rank's buffers, filled from the checkpoint; NaN where nothing was written."""
    known = shapes(arch, tp, kind)
    ranks = []
    for pieces in layout.ranks:
        keys = {piece.view.key for piece in pieces}
        views = {
            key: torch.full(known[".".join(key.split(".")[-2:])], float("nan")) for key in keys
        }
        assert fill_weights(str(folder), layout, pieces, views) <= {"score.weight", "score.bias"}
        ranks.append(views)
    return ranks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_every_weight_comes_back_bit_by_bit(tmp_path, kind, sizes):
    tp, pp, vpp = sizes
    folder = write_model(tmp_path, kind)
    arch, skeleton = described(folder)
    mesh = Mesh(dp=2, pp=pp, tp=tp)
    layout = megatron_layout(skeleton.params, skeleton.cuts, mesh, vpp, arch.kv_heads)
    ranks = filled(folder, layout, arch, tp)
    expected = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert set(layout.params) == set(expected)
    for name, parameter in expected.items():
        whole = torch.full(parameter.shape, float("nan"))
        for views, pieces in zip(ranks, layout.ranks, strict=True):
            for piece in pieces:
                if piece.name == name:
                    whole[piece.box.slices()] = local_view(piece, views[piece.view.key])
        assert torch.equal(whole, parameter), name
    # What no piece covers is the vocabulary's padding alone.
    for views in ranks:
        for key, view in views.items():
            empty = view.isnan().sum()
            assert not empty or (key.split(".")[-2] in ("embed_tokens", "lm_head") and tp == 2)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_parameters_are_ordered_as_megatron_reads_them(tmp_path, kind):
    """Against the order written out by hand: query groups, and gate above up on each rank."""
    folder = write_model(tmp_path, kind)
    arch, skeleton = described(folder)
    layout = megatron_layout(skeleton.params, skeleton.cuts, Mesh(tp=2), 1, arch.kv_heads)
    ranks = filled(folder, layout, arch, 2)
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    groups, dim = arch.kv_heads, arch.head_dim
    for rank, views in enumerate(ranks):
        for layer in range(arch.layers):
            base = f"model.layers.{layer}."
            for leaf in ("weight", "bias") if arch.qkv_bias else ("weight",):
                q, k, v = (state[f"{base}self_attn.{x}_proj.{leaf}"] for x in "qkv")
                parts = [t.view(groups, -1, *t.shape[1:]) for t in (q, k, v)]
                assert parts[1].shape[1] == dim
                whole = torch.cat(parts, 1).flatten(0, 1)
                assert torch.equal(views[f"{base}self_attn.qkv.{leaf}"], whole.chunk(2)[rank])
            gate, up = (state[f"{base}mlp.{x}_proj.weight"].chunk(2)[rank] for x in ("gate", "up"))
            assert torch.equal(views[f"{base}mlp.gate_up.weight"], torch.cat([gate, up]))
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                whole = state[f"{base}{name}.weight"]
                assert torch.equal(views[f"{base}{name}.weight"], whole.chunk(2, 1)[rank])


def test_the_stages_share_uneven_layers(tmp_path):
    folder = write_model(tmp_path, "qwen2", num_hidden_layers=3)
    arch, skeleton = described(folder)
    layout = megatron_layout(skeleton.params, skeleton.cuts, Mesh(pp=2), 1, arch.kv_heads)
    held = [{piece.view.key for piece in pieces} for pieces in layout.ranks]
    for stage, layers in enumerate([{0, 1}, {2}]):
        (chunk,) = chunks_of(3, stage, 2, 1)
        assert set(chunk.layers) == layers
        found = {int(k.split(".")[2]) for k in held[stage] if ".layers." in k}
        assert found == layers
    # A tied embedding is on both ends, once each.
    assert all("model.embed_tokens.weight" in keys for keys in held)
    assert "model.norm.weight" in held[1] - held[0]


def test_virtual_stages_take_turns():
    chunks = [chunks_of(8, stage, 2, 2) for stage in range(2)]
    assert [[list(c.layers) for c in mine] for mine in chunks] == [
        [[0, 1], [4, 5]],
        [[2, 3], [6, 7]],
    ]
    flags = [[(c.first, c.last) for c in mine] for mine in chunks]
    assert flags == [[(True, False), (False, False)], [(False, False), (False, True)]]


def test_names_of_plain_and_fused_modules_mean_the_same():
    (chunk,) = chunks_of(4, 1, 2, 1)
    for name in ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"):
        key = key_of(f"decoder.layers.1.{name}", chunk, False)
        assert key == "model.layers.3.input_layernorm.weight"
    assert key_of("output_layer.weight", chunk, False) == "lm_head.weight"
    assert key_of("output_layer.weight", chunk, True) == "model.embed_tokens.weight"
    with pytest.raises(ModelError, match="megatron-core 0.19.2"):
        key_of("decoder.layers.0.mlp.router.weight", chunk, False)


@pytest.mark.parametrize("kind", ["value", "score"])
def test_a_number_head_replaces_the_vocabulary_on_the_last_stage(tmp_path, kind):
    folder = write_model(tmp_path, "qwen2")
    arch, skeleton = described(folder, kind)
    layout = megatron_layout(skeleton.params, skeleton.cuts, Mesh(pp=2, tp=2), 1, arch.kv_heads)
    names = [{piece.name for piece in pieces} for pieces in layout.ranks]
    for rank, held in enumerate(names):
        assert ("score.weight" in held) == (rank >= 2)
        assert ("score.bias" in held) == (rank >= 2 and kind == "value")
        assert ("model.embed_tokens.weight" in held) == (rank < 2)


REFUSED = [
    ({"hidden_act": "gelu"}, "silu"),
    ({"model_type": "gemma"}, "llama, qwen2, qwen3"),
    ({"attention_bias": True}, "output bias"),
    ({"mlp_bias": True}, "biases"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
]


@pytest.mark.parametrize(("changes", "why"), REFUSED)
def test_what_megatron_would_compute_otherwise_is_refused(tmp_path, changes, why):
    config = read_config(str(write_model(tmp_path, "llama")))
    with pytest.raises(ModelError, match=why):
        Arch.read(SimpleNamespace(**{**vars(config), "model_type": "llama", **changes}))


@pytest.mark.parametrize(
    ("tp", "stages", "why"),
    [
        (4, 1, "num_key_value_heads=2"),
        (1, 5, "4 layers"),
        (2, 1, "intermediate_size=35"),
        (4, 1, "5 tokens"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(tmp_path, tp, stages, why):
    sizes = {"intermediate_size": 35} if "35" in why else {}
    if "tokens" in why:
        sizes = {"vocab_size": 5, "num_key_value_heads": 4, "intermediate_size": 32}
    folder = write_model(tmp_path, "llama", **sizes)
    with pytest.raises(ConfigError, match=why):
        Arch.read(read_config(str(folder))).check_sizes(tp, stages)


def test_a_checkpoint_of_another_shape_or_without_safetensors_is_refused(tmp_path):
    folder = write_model(tmp_path / "a", "llama")
    other = write_model(tmp_path / "b", "llama", hidden_size=32)
    arch, skeleton = described(folder)
    layout = megatron_layout(skeleton.params, skeleton.cuts, Mesh(), 1, arch.kv_heads)
    views = {p.view.key: torch.zeros(99999) for p in layout.ranks[0]}
    with pytest.raises(ModelError, match="has shape"):
        fill_weights(str(other), layout, layout.ranks[0], views)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no safetensors"):
        fill_weights(str(folder), layout, layout.ranks[0], views)

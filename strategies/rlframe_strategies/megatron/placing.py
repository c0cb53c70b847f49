"""Which rank keeps which part of a model in which of Megatron's parameters. Pure.

The layout is the conversion: a Megatron parameter is a buffer, and its pieces say which boxes of
Hugging Face's parameters lie where in it. Query, key and value are interleaved by query group, gate
and up stacked on each rank, the vocabulary is padded to a multiple of the tensor-parallel size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlframe.calling.protocol import Mesh
from rlframe.errors import ModelError
from rlframe.weights.fusing import fused_layout, fusions_of
from rlframe.weights.layout import Layout, ParamInfo, Piece
from rlframe.weights.sharding import Cut, grid_layout, stage_of_layer

__all__ = ["Chunk", "chunks_of", "key_of", "megatron_layout"]

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.+)$")
_IN_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_qkv.weight": "self_attn.qkv.weight",
    "self_attention.linear_qkv.bias": "self_attn.qkv.bias",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.weight": "mlp.gate_up.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
"""Parameters of a layer: of the plain modules, and of Transformer Engine's fused ones."""
_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "score.weight": "score.weight",
    "score.bias": "score.bias",
}


@dataclass(frozen=True)
class Chunk:
    """A run of layers that one rank holds; ``first`` and ``last`` of the whole model's runs."""

    layers: range
    first: bool
    last: bool


def chunks_of(layers: int, stage: int, stages: int, virtual: int) -> list[Chunk]:
    """What a pipeline stage holds: ``virtual`` runs, each ``stages`` runs after the one before."""
    runs = stages * virtual
    owner = [stage_of_layer(layer, layers, runs) for layer in range(layers)]
    chunks = []
    for run in range(stage, runs, stages):
        start = owner.index(run)
        chunks.append(Chunk(range(start, start + owner.count(run)), run == 0, run == runs - 1))
    return chunks


def key_of(name: str, chunk: Chunk, tied: bool) -> str:
    """The layout's key of a Megatron parameter. Raises ModelError for one that is not known."""
    found = _LAYER.match(name)
    if found and found[2] in _IN_LAYER:
        return f"model.layers.{chunk.layers[int(found[1])]}.{_IN_LAYER[found[2]]}"
    if name == "output_layer.weight":
        return "model.embed_tokens.weight" if tied else "lm_head.weight"
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    raise ModelError(
        f"megatron-core made a parameter '{name}' that has no Hugging Face name: this version of "
        "it is not known; install megatron-core 0.19.2"
    )


def megatron_layout(
    params: Mapping[str, ParamInfo],
    cuts: Mapping[str, Cut],
    mesh: Mesh,
    virtual: int,
    query_groups: int,
) -> Layout:
    """Every rank's pieces. Raises ConfigError for sizes that the model cannot be cut into."""
    stages = Mesh(dp=mesh.dp, pp=mesh.pp * virtual, tp=mesh.tp)
    plain = grid_layout(params, cuts, stages)
    fused = fused_layout(plain, fusions_of(params, query_groups=query_groups))
    return Layout(params, tuple(_of_rank(fused, stages, mesh, rank) for rank in range(mesh.size)))


def _of_rank(layout: Layout, stages: Mesh, mesh: Mesh, rank: int) -> tuple[Piece, ...]:
    """Pieces of all runs of layers that one rank holds."""
    if stages.pp == mesh.pp:
        return layout.ranks[rank]
    at = (mesh.dp_rank(rank), mesh.tp_rank(rank))
    runs = range(mesh.pp_rank(rank), stages.pp, mesh.pp)
    return tuple(p for run in runs for p in layout.ranks[stages.rank_of(at[0], run, at[1])])

"""Bytes of a device: states, activations (arXiv 2205.05198), logits, KV cache. Closed forms.

Every function takes a :class:`Grid` of ways and gives arrays of shape (ways,), in bytes.
"""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES, Floats, Grid
from rlframe_plugins.mappers.models import ModelShape

__all__ = [
    "activations",
    "gathered",
    "generation_memory",
    "host_memory",
    "passing_memory",
    "inference_memory",
    "kv_bytes",
    "layer_elements",
    "parameters_held",
    "states",
    "training_memory",
]


def _replicated(shape: ModelShape) -> float:
    """Parameters of a layer that tensor parallelism does not cut: norms, router, output bias."""
    share = shape.sparse_layers / shape.layers
    norms = 2 * shape.hidden + shape.qk_norm * 2 * shape.head_dim
    router = share * shape.hidden * (shape.experts + bool(shape.shared_intermediate))
    return norms + router + shape.out_bias * shape.hidden


def parameters_held(shape: ModelShape, t: Floats, p: Floats) -> Floats:
    """Parameters on the fullest device of a t x p replica, before data-parallel sharding.

    Key and value heads fewer than ``t`` are kept by several ranks. The first stage has the input
    embedding, the last one the head (a copy of the embedding where they are tied).
    """
    narrow = 2 * shape.hidden * shape.kv_heads * shape.head_dim
    whole = shape.layer_parameters / shape.layers
    same = _replicated(shape)
    layer = same + (whole - same - narrow) / t + narrow / np.minimum(t, shape.kv_heads)
    embedding = shape.embedding_parameters / t
    scalar = shape.head == "scalar"
    head = shape.head_parameters if scalar else shape.vocab * shape.hidden / t
    own = shape.head_parameters if scalar else shape.head_parameters / t
    alone = embedding + own + shape.hidden
    outer = np.where(p == 1, alone, np.maximum(embedding, head + shape.hidden))
    return layer * shape.layers / p + outer


def states(shape: ModelShape, grid: Grid, weight_bytes: int) -> dict[str, Floats]:
    """Weights, gradients and optimiser states of a trained role.

    Two-byte weights: 2 + 4 (fp32 gradient) + 12 (master copy and two moments); four-byte weights:
    4 + 4 + 8. What is cut over data-parallel ranks depends on the scheme.
    """
    held = parameters_held(shape, grid.t, grid.p)
    replica = grid.t * grid.p
    gradient, optimizer = (4, 12) if weight_bytes == 2 else (4, 8)
    return {
        "weights": weight_bytes * held * replica / grid.shards("fsdp"),
        "gradients": gradient * held * replica / grid.shards("zero2", "fsdp"),
        "optimizer": optimizer * held * replica / grid.shards("zero1", "zero2", "fsdp", "megatron"),
    }


def gathered(shape: ModelShape, grid: Grid, hardware: Hardware) -> Floats:
    """Whole weights that a device holds for a moment because its own are cut over ``d``."""
    layer = shape.layer_parameters / shape.layers * hardware.constants.gathered_layers
    most = max(layer, shape.embedding_parameters, shape.head_parameters)
    is_cut = (grid.scheme == SCHEMES.index("fsdp")) & (grid.d > grid.copies)
    return np.where(is_cut | (grid.offload == 1), hardware.weight_bytes * most / grid.t, 0.0)


def _on_device(parts: dict[str, Floats], grid: Grid) -> dict[str, Floats]:
    """States without those that are kept in host memory."""
    return {name: np.where(grid.offload == 1, 0.0, value) for name, value in parts.items()}


def host_memory(
    shape: ModelShape, grid: Grid, hardware: Hardware, trained: bool
) -> dict[str, Floats]:
    """Parts of a role that lie in host memory, bytes of each host, between its turns as in them.

    Pinned buffers are not given back, so gradients count although a step frees them.
    """
    parts = states(shape, grid, hardware.weight_bytes)
    names = parts if trained else ("weights",)
    many = np.where(grid.offload == 1, np.minimum(grid.devices, hardware.devices), 0.0)
    return {name: parts[name] * many for name in names}


def passing_memory(shape: ModelShape, grid: Grid, hardware: Hardware) -> dict[str, Floats]:
    """Bytes of a host's shared memory while a rollout takes weights: a whole model a replica.

    A replica over several hosts takes them on its first one.
    """
    here = np.minimum(grid.devices, hardware.devices)
    replicas = np.maximum(here / (grid.t * grid.p), 1.0)
    return {"passing": float(shape.parameters * hardware.weight_bytes) * replicas}


def layer_elements(shape: ModelShape) -> float:
    """Elements a token that one layer keeps for its backward pass, attention scores left out.

    Two norm inputs, two inputs of the projections, query and attention output, key and value, and
    gate, up and product of the MLP: the count of 2205.05198 (table 2) for gated MLPs without
    dropout.
    """
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return 4 * shape.hidden + 2 * wide + 2 * narrow + 3 * shape.mlp_width


def activations(
    shape: ModelShape, grid: Grid, tokens: Floats, attended: float, width: int
) -> Floats:
    """Kept for the backward pass by the first pipeline stage, with sequence parallelism over t.

    ``tokens`` of a micro-batch, ``attended`` the sequence length in attention, ``width`` bytes an
    element. The first stage keeps as many micro-batches as there are stages.
    """
    one = layer_elements(shape) * width
    scores = 2.5 * width * shape.heads * attended
    inputs = shape.hidden * width
    kept = np.select(
        [grid.recompute == RECOMPUTE.index("none"), grid.recompute == RECOMPUTE.index("full")],
        [(one + scores) / grid.t, np.full(len(grid), float(inputs))],
        one / grid.t,
    )
    again = np.where(grid.recompute == RECOMPUTE.index("full"), one / grid.t, 0.0)
    return tokens * (kept * shape.layers + again + inputs / grid.t)


def _logits(shape: ModelShape, grid: Grid, hardware: Hardware, tokens: Floats) -> Floats:
    c = hardware.constants
    return np.minimum(tokens, c.logits_chunk_tokens) * shape.outputs / grid.t * c.logits_bytes


def training_memory(
    shape: ModelShape, grid: Grid, hardware: Hardware, sequence: float, attended: float
) -> dict[str, Floats]:
    """Parts of a trained role, ``resident`` (between its turns) and ``working`` (added in them)."""
    tokens = grid.micro * sequence
    width = hardware.weight_bytes
    parts = _on_device(states(shape, grid, width), grid)
    parts["activations"] = activations(shape, grid, tokens, attended, width)
    parts["logits"] = _logits(shape, grid, hardware, tokens)
    parts["gathered"] = gathered(shape, grid, hardware)
    keeps_gradients = grid.scheme == SCHEMES.index("megatron")
    stays = parts["weights"] + parts["optimizer"] + np.where(keeps_gradients, parts["gradients"], 0)
    return _split(parts, stays)


def inference_memory(
    shape: ModelShape, grid: Grid, hardware: Hardware, sequence: float
) -> dict[str, Floats]:
    """Parts of a role that only scores."""
    tokens = grid.micro * sequence
    width = hardware.weight_bytes
    parts = {
        **_on_device({"weights": states(shape, grid, width)["weights"]}, grid),
        "activations": tokens * layer_elements(shape) * width / grid.t,
        "logits": _logits(shape, grid, hardware, tokens),
        "gathered": gathered(shape, grid, hardware),
    }
    return _split(parts, parts["weights"])


def kv_bytes(shape: ModelShape, t: Floats, p: Floats, width: int) -> Floats:
    """KV cache of one token on a device."""
    return shape.kv_width * width / np.minimum(t, shape.kv_heads) / p


def generation_memory(
    shape: ModelShape, grid: Grid, hardware: Hardware, context: float
) -> dict[str, Floats]:
    """Parts of a rollout; ``context`` is the tokens that a sequence has in the end."""
    width = hardware.weight_bytes
    parts = {
        "weights": width * parameters_held(shape, grid.t, grid.p),
        "kv_cache": grid.micro * context * kv_bytes(shape, grid.t, grid.p, width),
        "logits": grid.micro * shape.vocab / grid.t * 4.0,
    }
    return _split(parts, np.zeros(len(grid)))


def _split(parts: dict[str, Floats], stays: Floats) -> dict[str, Floats]:
    total = np.sum(list(parts.values()), axis=0)
    return {**parts, "resident": stays, "working": total - stays}

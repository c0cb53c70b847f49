"""Causal attention over rows that lie side by side, registered with transformers.

Everything but attention runs on the packed tokens; queries, keys and values are gathered to grids
of (rows, longest), one for each chunk of rows of like lengths, a shared prompt into all its rows.
Rows start at the left of a grid, so that causality alone keeps real tokens from looking at padding:
no mask is made, and the fast causal kernels are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rlframe.errors import ModelError
from rlframe_strategies.packing import Chunk, Inputs, Segments, Shared

__all__ = [
    "CONTEXT_ATTENTION",
    "PACKED_ATTENTION",
    "attention_kwargs",
    "packed_attention",
    "register_packed_attention",
    "supports_packing",
]

PACKED_ATTENTION = "rlframe_packed"
CONTEXT_ATTENTION = "rlframe_context"
"""Names that transformers knows our attention by: on one rank, and over context-parallel ranks."""
FLASH = ("flash_attention_2", "flash_attention_3")


def register_packed_attention() -> None:
    """Make ``attn_implementation="rlframe_packed"`` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def supports_packing(model: Any) -> bool:
    """Whether a transformers model attends causally, over all or a window of what came before."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return bool(
        model._supports_attention_backend
        and model._supports_sdpa
        and kinds <= {"full_attention", "sliding_attention"}
        and not config.is_encoder_decoder
        and not model._is_stateful
        and not getattr(config, "attn_logit_softcapping", None)
        and not getattr(config, "attention_chunk_size", None)
    )


def attention_kwargs(inputs: Inputs, implementation: str) -> Mapping[str, Any]:
    """What a packed forward passes down to the attention layers."""
    if inputs.whole is not None:
        return {"rlframe_whole": inputs.whole}
    segments = inputs.segments
    if segments is None:
        return {}
    if implementation in FLASH:
        return {
            "cu_seq_lens_q": segments.bounds,
            "cu_seq_lens_k": segments.bounds,
            "max_length_q": segments.longest,
            "max_length_k": segments.longest,
        }
    return {"rlframe_segments": segments}


class _Grid(torch.autograd.Function):
    """(t, h, d) tokens of a chunk to a (rows * longest, h, d) grid, zeros in between."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, chunk: Chunk) -> Tensor:
        ctx.slots = chunk.slots
        grid = tokens.new_zeros(chunk.rows * chunk.longest, *tokens.shape[1:])
        return grid.index_copy_(0, chunk.slots, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.slots), None


class _Tokens(torch.autograd.Function):
    """The reverse of :class:`_Grid`."""

    @staticmethod
    def forward(ctx: Any, grid: Tensor, chunk: Chunk) -> Tensor:
        ctx.slots, ctx.size = chunk.slots, len(grid)
        return grid.index_select(0, chunk.slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grid = grads[0].new_zeros(ctx.size, *grads[0].shape[1:])
        return grid.index_copy_(0, ctx.slots, grads[0]), None


class _Whole(torch.autograd.Function):
    """(T, h, d) fed tokens to (W, h, d) tokens of whole rows."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, shared: Shared) -> Tensor:
        ctx.shared = shared
        return tokens.index_select(0, shared.source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        shared: Shared = ctx.shared
        total = grads[0].index_select(0, shared.own)
        repeated = grads[0].index_select(0, shared.repeated)
        return total.index_add_(0, shared.source[shared.repeated], repeated), None


class _Fed(torch.autograd.Function):
    """(W, h, d) to (T, h, d): what attention gives for a repeated token is the same, and left."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, shared: Shared) -> Tensor:
        ctx.shared, ctx.size = shared, len(whole)
        return whole.index_select(0, shared.own)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = grads[0].new_zeros(ctx.size, *grads[0].shape[1:])
        return whole.index_copy_(0, ctx.shared.own, grads[0]), None


def _to_grid(tokens: Tensor, chunk: Chunk) -> Tensor:
    """(t, h, d) to (rows, h, longest, d)."""
    full = chunk.tokens == chunk.rows * chunk.longest
    grid: Tensor = tokens if full else _Grid.apply(tokens, chunk)  # type: ignore[no-untyped-call]
    return grid.view(chunk.rows, chunk.longest, *grid.shape[1:]).transpose(1, 2)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    rlframe_segments: Segments | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' interface: (r, h, w, d) in, (r, w, h, d) out.

    Without segments the rows are padded on the right. Raises ``ModelError`` where a mask arrives,
    or a packed row that the model did not pass the segments of, or a row beyond the window.
    """
    if attention_mask is not None:
        raise ModelError("packed attention was given a mask: set strategy.packing=off")
    longest = query.shape[2] if rlframe_segments is None else rlframe_segments.longest
    if sliding_window is not None and longest > sliding_window:
        raise ModelError("packed attention has no sliding window: set strategy.packing=off")
    if rlframe_segments is None:
        return _causal(query, key, value, dropout, scaling).contiguous(), None
    shared = rlframe_segments.shared
    heads = [t[0].transpose(0, 1) for t in (query, key, value)]
    if shared is not None:
        heads = [_Whole.apply(t, shared) for t in heads]  # type: ignore[no-untyped-call]
    chunks = rlframe_segments.chunks
    parts = [torch.split(t, [chunk.tokens for chunk in chunks]) for t in heads]
    outs: list[Tensor] = []
    for chunk, *tokens in zip(chunks, *parts, strict=True):
        q, k, v = (_to_grid(t, chunk) for t in tokens)
        flat = _causal(q, k, v, dropout, scaling).flatten(0, 1)
        outs.append(_Tokens.apply(flat, chunk))  # type: ignore[no-untyped-call]
    out = torch.cat(outs)
    if shared is not None:
        out = _Fed.apply(out, shared)  # type: ignore[no-untyped-call]
    return out[None], None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None
) -> Tensor:
    """(r, h, w, d) in, (r, w, h, d) out."""
    return scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        scale=scaling,
        is_causal=query.shape[2] > 1,
        enable_gqa=query.shape[1] != key.shape[1],
    ).transpose(1, 2)

"""Context parallelism: ranks share the tokens of the same rows (Ulysses, arXiv 2309.14509).

Every rank has equally many neighbouring tokens of all rows laid side by side; in attention it
swaps them for all tokens of its share of the heads. **T** tokens of all ranks, padded to equal
shares of **t**; **N** response tokens, **b** rows, **h** heads, **d** their width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rlframe.errors import ConfigError, ModelError
from rlframe_strategies.attention import CONTEXT_ATTENTION, packed_attention
from rlframe_strategies.building import packing_of
from rlframe_strategies.packing import Chunk, Inputs, Segments

if TYPE_CHECKING:
    from rlframe_strategies.divergence import Beside
    from rlframe_strategies.module import LanguageModel
    from rlframe_strategies.peers import Peers

__all__ = ["Share", "Whole", "share_inputs", "use_context"]


@dataclass(frozen=True)
class Whole:
    """What a rank needs to attend over all ranks' tokens."""

    peers: Peers
    segments: Segments
    tokens: int
    """T, without padding."""


@dataclass(frozen=True)
class Share:
    """One rank's inputs, and which of all outputs it gives."""

    inputs: Inputs
    peers: Peers
    tokens: Tensor
    """Indices among the N response tokens."""
    rows: Tensor
    """Indices among the b rows."""
    sizes: tuple[int, int]
    """N and b."""

    def run(
        self, module: LanguageModel, computes: Sequence[str], beside: Beside | None
    ) -> dict[str, Tensor]:
        """What the module gives for all ranks' inputs; every rank takes part."""
        if beside is not None:
            states, head = beside.teacher
            beside = replace(beside, teacher=(states.index_select(0, self.tokens), head))
        return self.join(module(self.inputs, computes, beside))

    def join(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of all ranks, whole on each."""
        out = {}
        for name, values in outputs.items():
            mine, size = (self.rows, 1) if name == "scores" else (self.tokens, 0)
            apply = _Join.apply
            whole = apply(values, mine, self.sizes[size], self.peers)  # type: ignore[no-untyped-call]
            out[name] = cast("Tensor", whole)
        return out


def use_context(module: LanguageModel, attn: str, heads: int, size: int) -> None:
    """Let the model attend through :func:`context_attention` from now on.

    Raises ConfigError where ``size`` ranks cannot share the ``heads`` of a tensor rank, and for a
    model whose attention is not causal over whole rows, or was asked to be another one (``attn``).
    """
    from transformers import AttentionInterface

    kind = type(module.lm).__name__
    if not packing_of(module, "auto", attn).ours:
        raise ConfigError(
            f"strategy.cp={size}: rlframe cannot attend for {kind} with model.attn={attn}; use "
            "model.attn=auto, or strategy.cp=1"
        )
    if heads % size:
        raise ConfigError(
            f"strategy.cp={size} does not divide the {heads} attention heads of a tensor rank of "
            f"{kind}: use a smaller strategy.cp or strategy.tp"
        )
    AttentionInterface.register(CONTEXT_ATTENTION, context_attention)
    module.lm.set_attn_implementation(CONTEXT_ATTENTION)


def share_inputs(inputs: Inputs, peers: Peers) -> Share:
    """A rank's equal share of the tokens; rows that were padded are laid side by side as they are.

    The mask of a padded batch is left out: padding lies behind the tokens that attend causally.
    """
    ids, positions = inputs.input_ids.flatten(), inputs.position_ids.flatten()
    share = -(-len(ids) // peers.size)
    start, spare = peers.rank * share, share * peers.size - len(ids)
    part = slice(start, start + share)
    segments = inputs.segments or _grid(inputs)
    tokens = _inside(inputs.take, part)
    rows = _inside(inputs.last, part)
    mine = replace(
        inputs,
        input_ids=pad(ids, (0, spare))[part][None],
        position_ids=pad(positions, (0, spare))[part][None],
        attention_mask=None,
        segments=None,
        take=inputs.take[tokens] - start,
        labels=inputs.labels[tokens],
        last=inputs.last[rows] - start,
        whole=Whole(peers, segments, len(ids)),
    )
    return Share(mine, peers, tokens, rows, (len(inputs.take), len(inputs.last)))


def _inside(places: Tensor, part: slice) -> Tensor:
    found: Tensor = ((places >= part.start) & (places < part.stop)).nonzero()
    return found[:, 0]


def _grid(inputs: Inputs) -> Segments:
    """Padded rows as one chunk that attends together."""
    b, longest = inputs.input_ids.shape
    slots = torch.arange(b * longest, device=inputs.input_ids.device)
    bounds = torch.arange(b + 1, dtype=torch.int32, device=slots.device) * longest
    return Segments(bounds, longest, (Chunk(slots, b * longest, b, longest),), None)


def context_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    rlframe_whole: Whole | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' interface over all ranks' tokens: (1, h, t, d) to (1, t, h, d).

    Raises ``ModelError`` where the model does not pass on what attention needs, and for rows beyond
    a sliding window.
    """
    if rlframe_whole is None or attention_mask is not None:
        raise ModelError(f"{type(module).__name__} does not attend as strategy.cp needs it: use 1")
    peers, segments = rlframe_whole.peers, rlframe_whole.segments
    if sliding_window is not None and segments.longest > sliding_window:
        raise ModelError(
            f"strategy.cp has no sliding window: a row has {segments.longest} tokens, the model's "
            f"window {sliding_window}; use strategy.cp=1"
        )
    key, value = (_repeat(one, peers.size) for one in (key, value))
    tokens = rlframe_whole.tokens
    parts = [_swap(one[0], peers, to_heads=True)[None, :, :tokens] for one in (query, key, value)]
    query_, key_, value_ = parts
    out = packed_attention(
        module, query_, key_, value_, None, dropout, scaling, rlframe_segments=segments
    )[0]
    spare = query.shape[2] * peers.size - tokens
    rest = pad(out[0], (0, 0, 0, 0, 0, spare)).transpose(0, 1)
    return _swap(rest, peers, to_heads=False).transpose(0, 1)[None], None


def _repeat(kept: Tensor, size: int) -> Tensor:
    """Key-value heads (1, k, t, d) repeated until ranks can share them, each by its own queries."""
    count = kept.shape[1]
    times = size // math.gcd(count, size)
    return kept if times == 1 else kept.repeat_interleave(times, 1)


def _swap(values: Tensor, peers: Peers, *, to_heads: bool) -> Tensor:
    """(h, t, d) of this rank's tokens to (h / ranks, T, d) of its heads, or back."""
    apply = _Swap.apply
    return cast("Tensor", apply(values, peers, to_heads))  # type: ignore[no-untyped-call]


def _exchange(values: Tensor, peers: Peers, to_heads: bool) -> Tensor:
    from torch import distributed as dist

    size = peers.size
    if to_heads:
        sent = values.reshape(size, -1, *values.shape[1:]).contiguous()
    else:
        h, tokens, d = values.shape
        sent = values.reshape(h, size, tokens // size, d).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=peers.group)
    return received.transpose(0, 1).flatten(1, 2) if to_heads else received.flatten(0, 1)


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, peers: Peers, to_heads: bool) -> Tensor:
        ctx.peers, ctx.to_heads = peers, to_heads
        return _exchange(values, peers, to_heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _exchange(grads[0], ctx.peers, not ctx.to_heads), None, None


class _Join(torch.autograd.Function):
    """Outputs of all ranks by index.

    Each rank's loss is the whole one, so that a rank keeps the gradients of its own outputs alone.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, mine: Tensor, size: int, peers: Peers) -> Tensor:
        ctx.save_for_backward(mine)
        whole = values.new_zeros(size, *values.shape[1:])
        return peers.all_reduce(whole.index_copy_(0, mine, values))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (mine,) = ctx.saved_tensors
        return grads[0].index_select(0, mine), None, None, None

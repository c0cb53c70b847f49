"""From rlframe's inputs to the arguments of Megatron's model: widths, masks, places of states.

**b** rows, **S** fed tokens of the longest (all of them where rows are packed: b = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlframe_strategies.packing import Inputs, Segments

__all__ = ["Feed", "feeds_of"]


@dataclass(frozen=True)
class Feed:
    """``ids``, ``positions`` (b, S) and ``mask``, True where attention may not look, or None.

    ``segments`` are the cumulative lengths (rows + 1,) int32 of packed rows for kernels that need
    no mask. ``take`` and ``last`` are the (position, row) pairs of states in an (S, b, H) tensor:
    before each response token, and of each row's last token.
    """

    inputs: Inputs
    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    segments: Tensor | None
    take: tuple[Tensor, Tensor]
    last: tuple[Tensor, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """(S, b)."""
        return self.ids.shape[1], self.ids.shape[0]

    def packed(self) -> Any:
        """What Transformer Engine's attention takes for packed rows; None where none are."""
        if self.segments is None or self.mask is not None:
            return None
        from megatron.core.packed_seq_params import PackedSeqParams

        longest = int((self.segments[1:] - self.segments[:-1]).max())
        return PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=self.segments,
            cu_seqlens_kv=self.segments,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )


def feeds_of(
    inputs: Sequence[Inputs], *, multiple: int, masked: bool, alike: bool = False
) -> list[Feed]:
    """Widen to a multiple of tokens (sequence parallelism cuts them evenly); mask on request.

    ``alike`` gives all of them one shape. Rows begin at the left, so what is added on the right or
    below is seen by no real token.
    """
    shapes = [tuple(one.input_ids.shape) for one in inputs]
    if alike:
        shapes = [(max(b for b, _ in shapes), max(s for _, s in shapes))] * len(shapes)
    return [
        _feed(one, rows, -(-width // multiple) * multiple, masked)
        for one, (rows, width) in zip(inputs, shapes, strict=True)
    ]


def _feed(inputs: Inputs, rows: int, width: int, masked: bool) -> Feed:
    own_rows, own = inputs.input_ids.shape
    below, right = rows - own_rows, width - own
    segments = None if inputs.segments is None else _with_rest(inputs.segments, right)
    ids, positions = (pad(t, (0, right, 0, below)) for t in (inputs.input_ids, inputs.position_ids))
    return Feed(
        inputs=inputs,
        ids=ids,
        positions=positions,
        mask=_mask(width, segments, ids.device) if masked else None,
        segments=segments,
        take=(inputs.take % own, inputs.take // own),
        last=(inputs.last % own, inputs.last // own),
    )


def _with_rest(segments: Segments, spare: int) -> Tensor:
    """Bounds of the rows, and of what fills up the width as one more row."""
    bounds = segments.bounds
    return torch.cat([bounds, bounds[-1:] + spare]) if spare else bounds


def _mask(width: int, bounds: Tensor | None, device: torch.device) -> Tensor:
    """(1, 1, S, S): later tokens, and those of other rows."""
    place = torch.arange(width, device=device)
    hidden = place[None, :] > place[:, None]
    if bounds is not None:
        row = torch.bucketize(place, bounds[1:], right=True)
        hidden = hidden | (row[None, :] != row[:, None])
    return hidden[None, None]

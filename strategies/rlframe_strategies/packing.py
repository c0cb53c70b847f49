"""From a micro-batch to model inputs: rows side by side, or padded on the right.

Only tokens that something is predicted from are fed: the last token of a row is left out unless a
score is read there. **T** tokens fed, **N** response tokens, **b** rows, **R** response width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlframe.errors import BatchError

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["Chunk", "Inputs", "Segments", "dummy_inputs", "make_inputs", "to_rows"]


_WORTH_PACKING = 0.97
"""Above this share of real tokens a padded batch is cheaper than gathering rows for attention."""
_WORTH_CUTTING = 0.7
"""Rows below this share of the longest one beside them attend in a chunk of their own."""


@dataclass(frozen=True)
class Chunk:
    """Rows of like lengths, which attend together: ``tokens`` that lie side by side.

    ``slots`` (tokens,) is each one's place in a (``rows``, ``longest``) grid.
    """

    slots: Tensor
    tokens: int
    rows: int
    longest: int


@dataclass(frozen=True)
class Segments:
    """Where the rows of a packed forward lie, the longest first.

    ``bounds`` (b + 1,) int32 are the cumulative lengths; the tokens of all ``chunks`` are T.
    """

    bounds: Tensor
    longest: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Inputs:
    """What the module is called with.

    ``input_ids``, ``position_ids`` (1, T) packed or (b, S) padded; ``attention_mask`` (b, S) where
    the attention needs one. ``take`` (N,) are the flat positions before each response token,
    ``labels`` (N,) the tokens, ``put`` (N,) their places in a flat (b, R) tensor, ``last`` (b,) the
    flat position of each row's last token.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None
    segments: Segments | None
    take: Tensor
    labels: Tensor
    put: Tensor
    last: Tensor
    rows: int
    width: int
    longest: int


def make_inputs(micro: TensorDict, *, packed: bool, masked: bool, whole: bool) -> Inputs:
    """Inputs of a micro-batch with at least one row.

    ``packed`` lays rows of unequal length side by side; ``masked`` adds an attention mask to a
    padded batch; ``whole`` feeds each row's last token too. Raises ``BatchError`` for a row whose
    response has no token before it.
    """
    prompts, responses = micro["prompt_ids"], micro["response_ids"]
    prompt_n, response_n = micro["prompt_lengths"], micro["response_lengths"]
    if bool((prompt_n < 1).any()):
        raise BatchError("a row has an empty prompt: its first token has nothing before it")
    device = prompts.device
    b, width = responses.shape
    columns = torch.arange(width, device=device)
    is_response = columns < response_n[:, None]
    fed_n = prompt_n + response_n if whole else prompt_n + (response_n - 1).clamp(min=0)
    longest = int(fed_n.max())
    spare = prompts.shape[1] - prompt_n
    place = torch.arange(longest, device=device)
    source = place + spare[:, None]
    fed = place < fed_n[:, None]
    rows_bs = torch.cat([prompts, responses], 1).gather(1, torch.where(fed, source, 0))
    index = _Index(fed, fed_n, prompt_n, is_response, columns)
    together = packed and int(fed_n.sum()) < _WORTH_PACKING * fed.numel()
    order = fed_n.argsort(descending=True, stable=True) if together else None
    ids, positions, segments, mask = _lay_out(rows_bs, place, fed, fed_n, order)
    take, last = index.flat(order, longest)
    return Inputs(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask if masked and not together else None,
        segments=segments,
        take=take,
        labels=responses[is_response],
        put=is_response.flatten().nonzero()[:, 0],
        last=last,
        rows=b,
        width=width,
        longest=longest,
    )


@dataclass(frozen=True)
class _Index:
    fed: Tensor
    fed_n: Tensor
    prompt_n: Tensor
    is_response: Tensor
    columns: Tensor

    def flat(self, order: Tensor | None, longest: int) -> tuple[Tensor, Tensor]:
        """Flat positions before each response token (N,), and of each row's last token (b,).

        ``order`` (b,) are the rows as they lie side by side; None is padded.
        """
        start = torch.arange(len(self.fed_n), device=self.fed_n.device) * longest
        if order is not None:
            ordered_n = self.fed_n[order]
            start[order] = ordered_n.cumsum(0) - ordered_n
        before = (start + self.prompt_n - 1)[:, None] + self.columns
        return before[self.is_response], start + self.fed_n - 1


def _lay_out(
    rows_bs: Tensor, place: Tensor, fed: Tensor, fed_n: Tensor, order: Tensor | None
) -> tuple[Tensor, Tensor, Segments | None, Tensor]:
    if order is None:
        ids = rows_bs.masked_fill(~fed, 0)
        return ids, place.expand_as(ids), None, fed.long()
    rows_bs, fed, fed_n = rows_bs[order], fed[order], fed_n[order]
    bounds = torch.zeros(len(fed_n) + 1, dtype=torch.int32, device=fed.device)
    bounds[1:] = fed_n.cumsum(0)
    segments = Segments(bounds, len(place), _cut(fed, fed_n.tolist()))
    return rows_bs[fed][None], place.expand_as(fed)[fed][None], segments, fed.long()


def _cut(fed: Tensor, lengths: Sequence[int]) -> tuple[Chunk, ...]:
    """Chunks of rows that are sorted by length; ``fed`` (b, longest) says what is a token."""
    starts = [0]
    for row, length in enumerate(lengths):
        if length < _WORTH_CUTTING * lengths[starts[-1]]:
            starts.append(row)
    chunks = []
    for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True):
        slots = fed[start:stop, : lengths[start]].flatten().nonzero()[:, 0]
        chunks.append(Chunk(slots, len(slots), stop - start, lengths[start]))
    return tuple(chunks)


def dummy_inputs(device: torch.device) -> Inputs:
    """One row of two tokens, for a rank that has no rows left; its outputs are thrown away."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return Inputs(
        input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device),
        position_ids=torch.arange(2, device=device)[None],
        attention_mask=None,
        segments=None,
        take=zero,
        labels=zero,
        put=zero,
        last=zero + 1,
        rows=1,
        width=1,
        longest=2,
    )


def to_rows(values: Tensor, inputs: Inputs) -> Tensor:
    """(N,) values of response tokens to (b, R), zeros where a row has ended."""
    flat = values.new_zeros(inputs.rows * inputs.width)
    return flat.index_put((inputs.put,), values).view(inputs.rows, inputs.width)

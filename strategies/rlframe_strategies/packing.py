"""From a micro-batch to model inputs: rows side by side, or padded on the right.

Only tokens that something is predicted from are fed: the last token of a row is left out unless a
score is read there. Rows side by side may share their prompt, which is then fed once. **T** tokens
fed, **N** response tokens, **b** rows, **R** response width.
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

    from rlframe_strategies.context import Whole

__all__ = ["Chunk", "Inputs", "Segments", "Shared", "dummy_inputs", "make_inputs", "to_rows"]


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
class Shared:
    """How T fed tokens become whole rows for attention, W tokens of which some are repeated.

    ``source`` (W,) is the fed token of each; ``own`` (T,) the first place of each fed token;
    ``repeated`` (W - T,) are the other places.
    """

    source: Tensor
    own: Tensor
    repeated: Tensor


@dataclass(frozen=True)
class Segments:
    """Where the rows of a packed forward lie, the longest first.

    ``bounds`` (b + 1,) int32 are the cumulative lengths, ``chunks`` what attends together, both of
    whole rows. ``shared`` is None where all of them are fed.
    """

    bounds: Tensor
    longest: int
    chunks: tuple[Chunk, ...]
    shared: Shared | None


@dataclass(frozen=True)
class Inputs:
    """What the module is called with.

    ``input_ids``, ``position_ids`` (1, T) packed or (b, S) padded; ``attention_mask`` (b, S) where
    the attention needs one. ``take`` (N,) are the flat positions before each response token,
    ``labels`` (N,) the tokens, ``put`` (N,) their places in a flat (b, R) tensor, ``last`` (b,) the
    flat position of each row's last token. ``whole`` is set where these are one rank's share.
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
    whole: Whole | None = None


def make_inputs(
    micro: TensorDict,
    *,
    packed: bool,
    masked: bool,
    whole: bool,
    shared: bool = False,
    pad: int | None = None,
) -> Inputs:
    """Inputs of a micro-batch with at least one row.

    ``packed`` lays rows of unequal length side by side; ``shared`` feeds a prompt of several such
    rows once; ``masked`` adds an attention mask to a padded batch; ``whole`` feeds each row's last
    token too; ``last`` passes over tokens ``pad``, as transformers' classifiers do. Raises
    ``BatchError`` for a row whose response has no token before it.
    """
    responses, prompt_n, response_n = _checked(micro)
    b, width = responses.shape
    columns = torch.arange(width, device=responses.device)
    is_response = columns < response_n[:, None]
    fed_n = prompt_n + (response_n if whole else (response_n - 1).clamp(min=0))
    longest = int(fed_n.max())
    place = torch.arange(longest, device=responses.device)
    held = place < fed_n[:, None]
    rows_bs = _rows(micro, held)
    order = fed_n.argsort(descending=True, stable=True)
    every = torch.arange(b, device=responses.device)
    owner = _owners(rows_bs, prompt_n, order) if packed and shared else every
    fed = held & ((owner == every)[:, None] | (place >= prompt_n[:, None]))
    segments = mask = None
    if packed and int(fed.sum()) < _WORTH_PACKING * held.numel():
        at, ids, positions, segments = _side_by_side(rows_bs, held, fed, order, owner)
    else:
        at = (every * longest)[:, None] + place
        ids, positions = rows_bs.masked_fill(~held, 0), place.expand_as(rows_bs)
        mask = held.long() if masked else None
    before = (prompt_n[:, None] - 1 + columns).clamp(max=longest - 1)
    return Inputs(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        segments=segments,
        take=at.gather(1, before)[is_response],
        labels=responses[is_response],
        put=is_response.flatten().nonzero()[:, 0],
        last=at.gather(1, _ends(rows_bs, held, pad)[:, None])[:, 0],
        rows=b,
        width=width,
        longest=longest,
    )


def _checked(micro: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
    """Response ids (b, R), lengths of prompts and of responses (b,)."""
    prompt_n = micro["prompt_lengths"]
    if bool((prompt_n < 1).any()):
        raise BatchError("a row has an empty prompt: its first token has nothing before it")
    return micro["response_ids"], prompt_n, micro["response_lengths"]


def _ends(rows_bs: Tensor, held: Tensor, pad: int | None) -> Tensor:
    """(b,) place of each row's last token that is not ``pad`` (of its last one if all are)."""
    counted = held if pad is None else held & (rows_bs != pad)
    counted = torch.where(counted.any(1, keepdim=True), counted, held)
    return (counted * torch.arange(held.shape[1], device=held.device)).amax(1)


def _rows(micro: TensorDict, held: Tensor) -> Tensor:
    """(b, longest) each row from its first token on; anything where it holds none."""
    prompts = micro["prompt_ids"]
    spare = (prompts.shape[1] - micro["prompt_lengths"])[:, None]
    place = torch.arange(held.shape[1], device=held.device)
    both = torch.cat([prompts, micro["response_ids"]], 1)
    return both.gather(1, torch.where(held, place + spare, 0))


def _owners(rows_bs: Tensor, prompt_n: Tensor, order: Tensor) -> Tensor:
    """(b,) the first row in ``order`` with the same prompt, which feeds it for all of them."""
    rows, lengths = rows_bs.tolist(), prompt_n.tolist()
    first: dict[tuple[int, ...], int] = {}
    owner = [0] * len(rows)
    for row in order.tolist():
        owner[row] = first.setdefault(tuple(rows[row][: lengths[row]]), row)
    return torch.tensor(owner, device=rows_bs.device)


def _side_by_side(
    rows_bs: Tensor, held: Tensor, fed: Tensor, order: Tensor, owner: Tensor
) -> tuple[Tensor, Tensor, Tensor, Segments]:
    """Where each (row, place) is among the fed tokens (b, longest), ids, positions, segments."""
    b, longest = fed.shape
    rank = order.argsort()
    held, fed = held[order], fed[order]
    at = (fed.flatten().cumsum(0) - 1).view(b, longest)
    at = torch.where(fed, at, at[rank[owner[order]]])
    place = torch.arange(longest, device=fed.device).expand_as(fed)
    bounds = torch.zeros(b + 1, dtype=torch.int32, device=fed.device)
    held_n = held.sum(1)
    bounds[1:] = held_n.cumsum(0)
    own = fed[held]
    shared = None
    if not bool(own.all()):
        shared = Shared(at[held], own.nonzero()[:, 0], (~own).nonzero()[:, 0])
    segments = Segments(bounds, longest, _cut(held, held_n.tolist()), shared)
    return at[rank], rows_bs[order][fed][None], place[fed][None], segments


def _cut(held: Tensor, lengths: Sequence[int]) -> tuple[Chunk, ...]:
    """Chunks of rows that are sorted by length; ``held`` (b, longest) says what is a token."""
    starts = [0]
    for row, length in enumerate(lengths):
        if length < _WORTH_CUTTING * lengths[starts[-1]]:
            starts.append(row)
    chunks = []
    for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True):
        slots = held[start:stop, : lengths[start]].flatten().nonzero()[:, 0]
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

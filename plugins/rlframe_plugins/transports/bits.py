"""Boxes of weights as runs of elements, whatever their type: what goes over a wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.layout import Box, Piece, Plan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Parts",
    "Target",
    "bucket_bits",
    "bucket_kind",
    "buckets",
    "pieces_of",
    "put_bits",
    "sent_bits",
]

Parts = tuple[tuple[str, Box], ...]
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Target:
    """New storage of a replica's rank, and its pieces by parameter."""

    tensors: Mapping[str, Tensor]
    pieces: Mapping[str, Sequence[Piece]]


def buckets(plan: Plan, rank: int, limit: int) -> Iterator[Parts]:
    """What a rank sends, each box once, in runs of one type of at most ``limit`` bytes (or one)."""
    sizes = _widths(plan)
    part: list[tuple[str, Box]] = []
    used = 0
    for name, box in dict.fromkeys((m.name, m.box) for m in plan.moves if m.source == rank):
        size = box.size * sizes[name]
        kind = plan.target.params[name].dtype
        if part and (used + size > limit or plan.target.params[part[0][0]].dtype != kind):
            yield tuple(part)
            part, used = [], 0
        part.append((name, box))
        used += size
    if part:
        yield tuple(part)


def bucket_kind(plan: Plan, parts: Parts) -> np.dtype[Any]:
    """The unsigned integer type of a bucket's elements."""
    return np.dtype(_UNSIGNED[_widths(plan)[parts[0][0]]])


def bucket_bits(plan: Plan, rank: int, parts: Parts, views: Mapping[str, Tensor]) -> NDArray[Any]:
    """A trainer's elements of a bucket, in the type of the replica: (n,) unsigned integers."""
    from rlframe.storage import dtypes, local_view

    types = dtypes({name: plan.target.params[name] for name, _ in parts})
    out = np.empty(sum(box.size for _, box in parts), bucket_kind(plan, parts))
    start = 0
    for name, box in parts:
        mine = (p for p in plan.source.ranks[rank] if p.name == name)
        held = next(p for p in mine if p.box.intersect(box) == box)
        view = local_view(held, views[held.view.key])[box.slices(held.box)]
        out[start : start + box.size] = _bits(view.detach().to(types[name]), out.dtype)
        start += box.size
    return out


def sent_bits(plan: Plan, rank: int, parts: Parts, tensors: Mapping[str, Tensor]) -> NDArray[Any]:
    """The same elements as a replica's rank holds them; what it lacks is 0."""
    from rlframe.storage import local_view

    out = np.zeros(sum(box.size for _, box in parts), bucket_kind(plan, parts))
    start = 0
    pieces = _by_name(plan.target.ranks[rank])
    for name, box in parts:
        whole = out[start : start + box.size].reshape(box.shape)
        for piece in pieces.get(name, ()):
            common = piece.box.intersect(box)
            if common is not None:
                view = local_view(piece, tensors[piece.view.key])[common.slices(piece.box)]
                whole[common.slices(box)] = _bits(view, out.dtype).reshape(common.shape)
        start += box.size
    return out


def pieces_of(plan: Plan, rank: int) -> Target:
    """New storage for a rank's target on the CPU."""
    import torch

    from rlframe.storage import allocate, dtypes

    pieces = plan.target.ranks[rank]
    tensors = allocate(pieces, dtypes(plan.target.params), torch.device("cpu"))
    return Target(tensors, _by_name(pieces))


def put_bits(target: Target, parts: Parts, bits: NDArray[Any], plan: Plan) -> None:
    """Write a bucket's elements where the rank wants them."""
    import torch

    from rlframe.storage import dtypes, local_view

    types = dtypes({name: plan.target.params[name] for name, _ in parts})
    start = 0
    for name, box in parts:
        run = bits[start : start + box.size].view(np.uint8)
        data = torch.from_numpy(run.copy()).view(types[name]).reshape(box.shape)
        for piece in target.pieces.get(name, ()):
            common = piece.box.intersect(box)
            if common is not None:
                view = local_view(piece, target.tensors[piece.view.key])
                view[common.slices(piece.box)] = data[common.slices(box)]
        start += box.size


def _bits(view: Tensor, kind: np.dtype[Any]) -> NDArray[Any]:
    import torch

    flat = view.cpu().contiguous().reshape(-1).view(torch.uint8)
    bits: NDArray[Any] = flat.numpy().view(kind)
    return bits


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    out: dict[str, list[Piece]] = {}
    for piece in pieces:
        out.setdefault(piece.name, []).append(piece)
    return out


def _widths(plan: Plan) -> dict[str, int]:
    from rlframe.storage import dtypes

    return {name: kind.itemsize for name, kind in dtypes(plan.target.params).items()}

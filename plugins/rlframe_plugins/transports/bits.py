"""Boxes of weights as runs of elements, whatever their type: what goes over a wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import SyncError
from rlframe.interfaces.checkpoint import BaseWeights
from rlframe.weights.layout import Box, Piece, Plan

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Parts",
    "Target",
    "base_bits",
    "bucket_bits",
    "bucket_kind",
    "bucket_type",
    "buckets",
    "part_views",
    "pieces_of",
    "put_bits",
    "sent_bits",
    "split_bits",
    "whole_part",
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


def bucket_type(plan: Plan, parts: Parts) -> torch.dtype:
    """The type of a bucket's elements at the replica."""
    from rlframe.weights.storage import dtypes

    name = parts[0][0]
    return dtypes({name: plan.target.params[name]})[name]


def part_views(
    plan: Plan, rank: int, parts: Parts, views: Mapping[str, Tensor]
) -> Iterator[Tensor]:
    """A trainer's own storage of each part, in its own type."""
    from rlframe.weights.storage import local_view

    pieces = _by_name(plan.source.ranks[rank])
    for name, box in parts:
        held = next(p for p in pieces[name] if p.box.intersect(box) == box)
        yield local_view(held, views[held.view.key])[box.slices(held.box)].detach()


def bucket_bits(plan: Plan, rank: int, parts: Parts, views: Mapping[str, Tensor]) -> NDArray[Any]:
    """A trainer's elements of a bucket, in the type of the replica: (n,) unsigned integers."""
    import torch

    out = torch.empty(sum(box.size for _, box in parts), dtype=bucket_type(plan, parts))
    start = 0
    for (_, box), view in zip(parts, part_views(plan, rank, parts, views), strict=True):
        out[start : start + box.size].view(box.shape).copy_(view)
        start += box.size
    bits: NDArray[Any] = out.view(torch.uint8).numpy().view(bucket_kind(plan, parts))
    return bits


def sent_bits(plan: Plan, rank: int, parts: Parts, tensors: Mapping[str, Tensor]) -> NDArray[Any]:
    """The same elements as a replica's rank holds them, new storage; what it lacks is 0."""
    import torch

    out = torch.zeros(sum(box.size for _, box in parts), dtype=bucket_type(plan, parts))
    held = Target(tensors, _by_name(plan.target.ranks[rank]))
    for mine, view in _common(held, parts, out):
        view.copy_(mine)
    bits: NDArray[Any] = out.view(torch.uint8).numpy().view(bucket_kind(plan, parts))
    return bits


def base_bits(
    plan: Plan, rank: int, parts: Parts, version: int | None, base: BaseWeights | None, who: str
) -> NDArray[Any]:
    """The elements of ``version`` that an encoded bucket builds on; None: none, zeros then.

    Raises SyncError where a replica has another version; ``who`` sent the bucket.
    """
    if version is None:
        return np.zeros(sum(box.size for _, box in parts), bucket_kind(plan, parts))
    if base is None or base.version != version:
        have = "nothing" if base is None else f"version {base.version}"
        raise SyncError(f"{who} builds on version {version}, this replica has {have}")
    return sent_bits(plan, rank, parts, base.tensors)


def pieces_of(plan: Plan, rank: int) -> Target:
    """New storage for a rank's target on the CPU."""
    import torch

    from rlframe.weights.storage import allocate, dtypes

    pieces = plan.target.ranks[rank]
    tensors = allocate(pieces, dtypes(plan.target.params), torch.device("cpu"))
    return Target(tensors, _by_name(pieces))


def put_bits(target: Target, parts: Parts, bits: NDArray[Any], plan: Plan) -> None:
    """Write a bucket's elements where the rank wants them."""
    import torch

    flat = torch.from_numpy(bits.view(np.uint8)).view(bucket_type(plan, parts))
    for mine, view in _common(target, parts, flat):
        mine.copy_(view)


def split_bits(plan: Plan, parts: Parts, bits: NDArray[Any]) -> Iterator[Tensor]:
    """Each part of a bucket's elements as a tensor of the replica's type."""
    import torch

    flat = torch.from_numpy(bits.view(np.uint8)).view(bucket_type(plan, parts))
    yield from torch.split(flat, [box.size for _, box in parts])


def whole_part(target: Target, part: tuple[str, Box]) -> Tensor | None:
    """Where a rank keeps just this part, if it does so in one run."""
    from rlframe.weights.storage import local_view

    name, box = part
    pieces = target.pieces.get(name, ())
    if len(pieces) != 1 or pieces[0].box.intersect(box) != box:
        return None
    (piece,) = pieces
    view = local_view(piece, target.tensors[piece.view.key])[box.slices(piece.box)]
    return view if view.is_contiguous() else None


def _common(target: Target, parts: Parts, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Of parts that follow each other in ``flat``: what a rank holds, and where it is there."""
    from rlframe.weights.storage import local_view

    start = 0
    for name, box in parts:
        whole = flat[start : start + box.size].view(box.shape)
        for piece in target.pieces.get(name, ()):
            common = piece.box.intersect(box)
            if common is not None:
                view = local_view(piece, target.tensors[piece.view.key])
                yield view[common.slices(piece.box)], whole[common.slices(box)]
        start += box.size


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    out: dict[str, list[Piece]] = {}
    for piece in pieces:
        out.setdefault(piece.name, []).append(piece)
    return out


def _widths(plan: Plan) -> dict[str, int]:
    from rlframe.weights.storage import dtypes

    return {name: kind.itemsize for name, kind in dtypes(plan.target.params).items()}

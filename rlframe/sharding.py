"""Layouts as functions of parallel sizes: tensor and pipeline grids, and flat partitions. Pure.

A :class:`Cut` says of a parameter along which dimension tensor parallelism cuts it and which layer
it belongs to; :func:`grid_layout` lays a model over a mesh for training or, by one of two groupings
(HybridFlow, arXiv 2409.19256, section 5.3), for generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rlframe.errors import ConfigError
from rlframe.layout import Box, Layout, LocalView, ParamInfo, Piece, strides
from rlframe.protocol import Mesh

__all__ = [
    "Cut",
    "Grouping",
    "flat_layout",
    "flat_pieces",
    "generation_place",
    "grid_layout",
    "stage_of_layer",
]

Grouping = Literal["strided", "adjacent"]
"""strided: zero redundancy, a rank's training shard lies inside its generation shard; adjacent: the
plain grouping, neighbours form a generation replica."""


@dataclass(frozen=True)
class Cut:
    """How tensor parallelism cuts one parameter, and where its layer lies.

    ``axis``: dimension that is cut, None for a replicated parameter; ``units``: pieces that stay
    whole along it (heads; 0: single rows). More ranks than units replicate them (GQA).
    ``blocks``: parts of the dimension that are cut each on its own ([gate; up] in one tensor).
    ``layer``: 0-based; None: see ``ends``, the pipeline stages that hold what is in no layer:
    "first" (embedding), "last" (final norm, head), or both (tied embeddings).
    """

    axis: int | None = None
    units: int = 0
    blocks: int = 1
    layer: int | None = None
    ends: tuple[Literal["first", "last"], ...] = ("last",)


def stage_of_layer(layer: int, layers: int, stages: int) -> int:
    """The pipeline stage of a layer: equal runs, the first ones longer by one where needed."""
    size, longer = divmod(layers, stages)
    edge = longer * (size + 1)
    return layer // (size + 1) if layer < edge else longer + (layer - edge) // max(size, 1)


def generation_place(mesh: Mesh, rank: int, grouping: Grouping) -> tuple[int, int]:
    """(stage, tensor index) of a rank in generation."""
    if grouping == "strided":
        return mesh.gpp_rank(rank), mesh.gtp_rank(rank)
    inside = rank % (mesh.pp * mesh.tp)
    return inside // mesh.tg % mesh.pg, inside % mesh.tg


def grid_layout(
    params: Mapping[str, ParamInfo],
    cuts: Mapping[str, Cut],
    mesh: Mesh,
    generation: Grouping | None = None,
) -> Layout:
    """Every rank's shards of a model on a mesh, for training or by a generation grouping.

    Raises ConfigError for sizes that the model cannot be cut into.
    """
    layers = 1 + max((c.layer for c in cuts.values() if c.layer is not None), default=-1)
    stages, tensor = (mesh.pp, mesh.tp) if generation is None else (mesh.pg, mesh.tg)
    if layers < stages:
        raise ConfigError(f"{layers} layers cannot fill {stages} pipeline stages")

    def place(rank: int) -> tuple[int, int]:
        if generation is None:
            return mesh.pp_rank(rank), mesh.tp_rank(rank)
        return generation_place(mesh, rank, generation)

    memo: dict[tuple[int, int], tuple[Piece, ...]] = {}
    ranks = []
    for rank in range(mesh.size):
        at = place(rank)
        if at not in memo:
            names = [n for n in params if at[0] in _stages(cuts[n], layers, stages)]
            shards = [_shard(n, params[n], cuts[n], at[1], tensor) for n in names]
            memo[at] = tuple(piece for pieces in shards for piece in pieces)
        ranks.append(memo[at])
    return Layout(params, tuple(ranks))


def flat_layout(params: Mapping[str, ParamInfo], world: int) -> Layout:
    """ZeRO-3: every parameter flattened and cut into ``world`` runs of ceil(n / world) elements."""
    ranks = []
    for rank in range(world):
        pieces: list[Piece] = []
        for name, info in params.items():
            total = Box((0,) * len(info.shape), info.shape).size
            size = -(-total // world)
            start, end = min(rank * size, total), min((rank + 1) * size, total)
            pieces += flat_pieces(name, info, (start, end), LocalView(name, 0, ()))
        ranks.append(tuple(pieces))
    return Layout(params, tuple(ranks))


def flat_pieces(
    name: str, info: ParamInfo, span: tuple[int, int], view: LocalView
) -> Iterator[Piece]:
    """Elements ``span`` of a flattened parameter, one after the other from ``view`` on."""
    for box, at in _runs(info.shape, *span):
        held = LocalView(view.key, view.offset + at - span[0], strides(info.shape))
        yield Piece(name, box, held)


def _stages(cut: Cut, layers: int, stages: int) -> set[int]:
    if cut.layer is not None:
        return {stage_of_layer(cut.layer, layers, stages)}
    return {0 if end == "first" else stages - 1 for end in cut.ends}


def _shard(name: str, info: ParamInfo, cut: Cut, index: int, ranks: int) -> Iterator[Piece]:
    if cut.axis is None or ranks == 1:
        box = Box((0,) * len(info.shape), info.shape)
        yield Piece(name, box, LocalView(name, 0, strides(info.shape)))
        return
    whole = info.shape[cut.axis] // cut.blocks
    low, high = _span(name, whole, cut, index, ranks)
    local = list(info.shape)
    local[cut.axis] = (high - low) * cut.blocks
    steps = strides(tuple(local))
    for block in range(cut.blocks):
        offset, shape = [0] * len(info.shape), list(info.shape)
        offset[cut.axis], shape[cut.axis] = block * whole + low, high - low
        start = block * (high - low) * steps[cut.axis]
        yield Piece(name, Box(tuple(offset), tuple(shape)), LocalView(name, start, steps))


def _span(name: str, extent: int, cut: Cut, index: int, ranks: int) -> tuple[int, int]:
    if not cut.units:
        size = -(-extent // ranks)
        return min(index * size, extent), min((index + 1) * size, extent)
    width = extent // cut.units
    if ranks <= cut.units:
        if cut.units % ranks:
            raise ConfigError(f"'{name}': {cut.units} heads do not divide by {ranks} ranks")
        count = cut.units // ranks
        return index * count * width, (index + 1) * count * width
    if ranks % cut.units:
        raise ConfigError(f"'{name}': {ranks} ranks do not share {cut.units} heads evenly")
    unit = index * cut.units // ranks
    return unit * width, (unit + 1) * width


def _runs(shape: tuple[int, ...], start: int, end: int) -> Iterator[tuple[Box, int]]:
    """Elements ``start`` to ``end`` of a row-major tensor as boxes, each with its flat start."""
    if start >= end:
        return
    if len(shape) <= 1:
        yield Box((start,) if shape else (), (end - start,) if shape else ()), start
        return
    row = strides(shape)[0]
    first, last = start // row, (end - 1) // row
    if first == last:
        yield from _inside(shape, row, first, start, end)
        return
    if start % row:
        yield from _inside(shape, row, first, start, (first + 1) * row)
        first += 1
    whole = end // row
    if whole > first:
        yield Box((first, *(0,) * (len(shape) - 1)), (whole - first, *shape[1:])), first * row
    if end % row:
        yield from _inside(shape, row, whole, whole * row, end)


def _inside(
    shape: tuple[int, ...], row: int, index: int, start: int, end: int
) -> Iterator[tuple[Box, int]]:
    base = index * row
    for box, at in _runs(shape[1:], start - base, end - base):
        yield Box((index, *box.offset), (1, *box.shape)), base + at

"""Layouts as functions of parallel sizes: tensor and pipeline grids, and flat partitions. Pure.

A :class:`Cut` says of a parameter along which dimension tensor parallelism cuts it and which layer
it belongs to; :func:`grid_layout` lays a model over a mesh for training or, by one of two groupings
(HybridFlow, arXiv 2409.19256, section 5.3), for generation. An :class:`ExpertGrid` deals experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError
from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece, strides

__all__ = [
    "Cut",
    "ExpertGrid",
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
    ``experts``: how many its layer has, 0 for what is no expert's; ``expert``: which one's it is,
    None where dimension 0 counts all of them.
    ``padded``: extent along ``axis`` with padding, which the ranks share evenly (vocabulary; 0:
    none); the padding is in no layout, it follows the last rows in the ranks' buffers.
    """

    axis: int | None = None
    units: int = 0
    blocks: int = 1
    layer: int | None = None
    ends: tuple[Literal["first", "last"], ...] = ("last",)
    experts: int = 0
    expert: int | None = None
    padded: int = 0


@dataclass(frozen=True)
class ExpertGrid:
    """How the ranks of one pipeline stage share the experts of a layer.

    The stage's ranks, tensor neighbours first, then data, form replicas of ``ep x tp``: neighbours
    cut each expert, ``ep`` of them share the experts out. ``eg`` and ``tg`` are these sizes in
    generation. 0 takes those of training, and the mesh's own tensor sizes where ``tp`` is 0 too.
    """

    ep: int = 1
    tp: int = 0
    eg: int = 0
    tg: int = 0

    def sizes(self, mesh: Mesh) -> tuple[int, int, int, int]:
        """``ep, tp, eg, tg`` on a mesh. Raises ConfigError where they do not fit it."""
        tp, eg = self.tp or mesh.tp, self.eg or self.ep
        tg = self.tg or self.tp or mesh.tg
        for what, count, inside in (
            ("training", mesh.dp * mesh.tp, self.ep * tp),
            ("generation", mesh.size // mesh.pg, eg * tg),
        ):
            if inside < 1 or count % inside:
                raise ConfigError(
                    f"experts in {what}: {count} ranks a pipeline stage are not replicas of "
                    f"{inside} (expert x tensor parallel)"
                )
        return self.ep, tp, eg, tg

    def place(self, mesh: Mesh, rank: int, generation: Grouping | None = None) -> tuple[int, int]:
        """(which experts, which part of each) a rank holds. Raises ConfigError.

        "strided" puts a rank's training experts inside those that it has in generation.
        """
        ep, tp, eg, tg = self.sizes(mesh)
        if generation == "adjacent":
            inside, replica = rank % (mesh.pp * mesh.tp), mesh.pg * mesh.tg
            order = (mesh.dp_rank(rank) * mesh.dg + inside // replica) * mesh.tg + inside % mesh.tg
            return order // tg % eg, order % tg
        order = mesh.dp_rank(rank) * mesh.tp + mesh.tp_rank(rank)
        which, part = order // tp % ep, order % tp
        if generation is None:
            return which, part
        if ep % eg or tp % tg:
            raise ConfigError(
                f"experts {ep} x {tp} in training do not lie inside {eg} x {tg} in generation: "
                "use divisors of the training sizes"
            )
        return which * eg // ep, part * tg // tp


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
    experts: ExpertGrid | None = None,
) -> Layout:
    """Every rank's shards of a model on a mesh, for training or by a generation grouping.

    Without ``experts`` tensor parallelism cuts each expert, and every replica has all of them.
    Raises ConfigError for sizes that the model cannot be cut into.
    """
    layers = 1 + max((c.layer for c in cuts.values() if c.layer is not None), default=-1)
    stages, tensor = (mesh.pp, mesh.tp) if generation is None else (mesh.pg, mesh.tg)
    if layers < stages:
        raise ConfigError(f"{layers} layers cannot fill {stages} pipeline stages")

    grid = experts or ExpertGrid()
    deal = any(cut.experts for cut in cuts.values())
    if deal:
        shared, cut_by = grid.sizes(mesh)[:2] if generation is None else grid.sizes(mesh)[2:]

    def place(rank: int) -> tuple[int, int, tuple[int, int]]:
        inside = grid.place(mesh, rank, generation) if deal else (0, 0)
        if generation is None:
            return mesh.pp_rank(rank), mesh.tp_rank(rank), inside
        return *generation_place(mesh, rank, generation), inside

    def shard(name: str, index: int, inside: tuple[int, int]) -> Iterator[Piece]:
        cut, info = cuts[name], params[name]
        if not cut.experts:
            return _shard(name, info, cut, index, tensor)
        return _expert_shard(name, info, cut, inside, (shared, cut_by))

    memo: dict[Any, tuple[Piece, ...]] = {}
    ranks = []
    for rank in range(mesh.size):
        at = place(rank)
        if at not in memo:
            names = [n for n in params if at[0] in _stages(cuts[n], layers, stages)]
            memo[at] = tuple(piece for n in names for piece in shard(n, *at[1:]))
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
    yield from _cut_box(name, Box((0,) * len(info.shape), info.shape), cut, index, ranks)


def _expert_shard(
    name: str, info: ParamInfo, cut: Cut, place: tuple[int, int], sizes: tuple[int, int]
) -> Iterator[Piece]:
    """The part of a rank's experts; nothing of a single expert that is another rank's."""
    (which, part), (shared, tensor) = place, sizes
    if cut.experts % shared:
        raise ConfigError(f"'{name}': {cut.experts} experts do not divide by {shared} ranks")
    count = cut.experts // shared
    if cut.expert is not None:
        if cut.expert // count == which:
            yield from _shard(name, info, cut, part, tensor)
        return
    whole = Box(
        (which * count, *(0,) * (len(info.shape) - 1)),
        (count, *info.shape[1:]),
    )
    yield from _cut_box(name, whole, cut, part, tensor)


def _cut_box(name: str, within: Box, cut: Cut, index: int, ranks: int) -> Iterator[Piece]:
    """One rank's part of a box that is whole along the cut's axis."""
    if cut.axis is None or (ranks == 1 and not cut.padded):
        yield Piece(name, within, LocalView(name, 0, strides(within.shape)))
        return
    whole = within.shape[cut.axis] // cut.blocks
    low, high = _span(name, whole, cut, index, ranks)
    local = list(within.shape)
    local[cut.axis] = (high - low) * cut.blocks
    steps = strides(tuple(local))
    for block in range(cut.blocks):
        offset, shape = list(within.offset), list(within.shape)
        offset[cut.axis], shape[cut.axis] = block * whole + low, high - low
        start = block * (high - low) * steps[cut.axis]
        yield Piece(name, Box(tuple(offset), tuple(shape)), LocalView(name, start, steps))


def _span(name: str, extent: int, cut: Cut, index: int, ranks: int) -> tuple[int, int]:
    if cut.padded and (cut.padded < extent or cut.padded % ranks):
        raise ConfigError(
            f"'{name}': {extent} rows padded to {cut.padded} do not divide by {ranks} ranks"
        )
    if not cut.units:
        size = (cut.padded or -(-extent // ranks) * ranks) // ranks
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

"""What a transition costs under the three groupings, counted from plans, beside the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlframe.layout import Box, Layout, ParamInfo, Plan
from rlframe.protocol import Mesh
from rlframe.sharding import Cut, flat_layout, grid_layout
from rlframe_plugins.resharders.planner import missing_moves, without

__all__ = ["Transition", "bytes_of", "transitions", "whole_bytes"]

GroupingName = Literal["zero-redundancy", "vanilla", "gather-all"]


@dataclass(frozen=True)
class Transition:
    """One way from training to generation; bytes, per rank where a list.

    ``expected`` are the paper's figures for a rank (table 2; norms counted apart): received, peak,
    redundant.
    """

    name: GroupingName
    plan: Plan
    received: tuple[int, ...]
    peak: tuple[int, ...]
    redundant: tuple[int, ...]
    expected: tuple[float, float, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        names = ("received", "peak", "redundant")
        counted = {n: list(getattr(self, n)) for n in names}
        return {
            "grouping": self.name,
            **counted,
            "expected": dict(zip(names, self.expected, strict=True)),
            "sends": [
                {"source": s, "target": t, "bytes": n} for (s, t), n in sends(self.plan).items()
            ],
        }


def transitions(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], mesh: Mesh
) -> list[Transition]:
    """The three groupings: zero redundancy, vanilla, and ZeRO to tensor parallel (gather all)."""
    train = grid_layout(params, cuts, mesh)
    zero = grid_layout(params, cuts, mesh, "zero-redundancy")
    vanilla = grid_layout(params, cuts, mesh, "vanilla")
    flat = flat_layout(params, mesh.size)
    whole = Layout.full(params, mesh.size)
    total = whole_bytes(params)
    return [
        _transition("zero-redundancy", train, zero, zero, _zero(params, cuts, mesh)),
        _transition("vanilla", train, vanilla, whole, _vanilla(params, cuts, mesh, total)),
        _transition("gather-all", flat, vanilla, whole, _gather_all(mesh, total)),
    ]


def sends(plan: Plan) -> dict[tuple[int, int], int]:
    """Bytes by (source, target), sorted."""
    out: dict[tuple[int, int], int] = {}
    for move in plan.moves:
        pair = (move.source, move.target)
        out[pair] = out.get(pair, 0) + bytes_of(plan.source.params[move.name], move.box)
    return dict(sorted(out.items()))


def bytes_of(info: ParamInfo, box: Box) -> int:
    """Bytes of a box."""
    return box.size * _WIDTH[info.dtype]


def whole_bytes(params: Mapping[str, ParamInfo]) -> int:
    """Bytes of a model."""
    return sum(bytes_of(p, Box((0,) * len(p.shape), p.shape)) for p in params.values())


_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


def _transition(
    name: GroupingName,
    source: Layout,
    target: Layout,
    gathered: Layout,
    expected: tuple[float, float, float],
) -> Transition:
    """``gathered`` is what lies on a rank in the middle, ``target`` what stays."""
    plan = Plan(source, target, tuple(missing_moves(source, gathered)))
    received = [0] * source.world
    for (_, to), count in sends(plan).items():
        received[to] += count
    peak = tuple(_union_bytes(source, gathered, r) for r in range(source.world))
    redundant = tuple(_outside_bytes(source, target, r) for r in range(source.world))
    return Transition(name, plan, tuple(received), peak, redundant, expected)


def _outside_bytes(source: Layout, target: Layout, rank: int) -> int:
    """Training bytes of a rank outside its generation shard."""
    held: dict[str, list[Box]] = {}
    for piece in target.ranks[rank]:
        held.setdefault(piece.name, []).append(piece.box)
    total = 0
    for piece in source.ranks[rank]:
        rest = [piece.box] if piece.box.size else []
        for box in held.get(piece.name, ()):
            rest = [part for one in rest for part in without(one, box)]
        total += sum(bytes_of(source.params[piece.name], part) for part in rest)
    return total


def _union_bytes(source: Layout, gathered: Layout, rank: int) -> int:
    inside = sum(bytes_of(gathered.params[p.name], p.box) for p in gathered.ranks[rank])
    return inside + _outside_bytes(source, gathered, rank)


def _split(params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut]) -> tuple[int, int]:
    """Bytes that tensor parallelism cuts, and those that it replicates."""
    cut = {n: p for n, p in params.items() if cuts[n].axis is not None}
    return whole_bytes(cut), whole_bytes({n: p for n, p in params.items() if n not in cut})


def _zero(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], mesh: Mesh
) -> tuple[float, float, float]:
    cut, same = _split(params, cuts)
    whole, kept = mesh.tp * mesh.pp, mesh.tg * mesh.pg
    received = cut * (whole - kept) / (kept * whole)
    received += same * (mesh.pp - mesh.pg) / (mesh.pg * mesh.pp)
    return received, cut / kept + same / mesh.pg, 0.0


def _vanilla(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], mesh: Mesh, total: int
) -> tuple[float, float, float]:
    cut, same = _split(params, cuts)
    whole = mesh.tp * mesh.pp
    received = cut * (whole - 1) / whole + same * (mesh.pp - 1) / mesh.pp
    apart = mesh.dg > 1 and mesh.tg * mesh.pg > 1
    return received, total, (cut / whole + same / mesh.pp * (mesh.pg > 1)) if apart else 0.0


def _gather_all(mesh: Mesh, total: int) -> tuple[float, float, float]:
    redundant = total / mesh.size if mesh.tg * mesh.pg > 1 else 0.0
    return total * (mesh.size - 1) / mesh.size, total, redundant

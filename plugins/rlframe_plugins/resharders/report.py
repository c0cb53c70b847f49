"""What a transition costs under the three groupings, counted from plans, beside the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlframe.calling.protocol import Mesh
from rlframe.weights.layout import Box, Layout, ParamInfo, Plan
from rlframe.weights.sharding import (
    Cut,
    ExpertGrid,
    flat_layout,
    generation_place,
    grid_layout,
    stage_of_layer,
)
from rlframe_plugins.resharders.measure import bytes_of, outside_bytes
from rlframe_plugins.resharders.planner import missing_moves

__all__ = ["Transition", "transitions", "whole_bytes"]

GroupingName = Literal["zero-redundancy", "vanilla", "gather-all"]


@dataclass(frozen=True)
class Transition:
    """One way from training to generation; bytes, per rank where a list.

    ``plan`` moves one parameter of each class of alike ones, ``alike`` says how many there are.

    ``expected`` are the paper's figures for a rank (table 2; norms and experts counted apart):
    received, peak, redundant.
    """

    name: GroupingName
    plan: Plan
    alike: Mapping[str, int]
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
            "sends": [{"source": s, "target": t, "bytes": n} for (s, t), n in self.sends().items()],
        }

    def sends(self) -> dict[tuple[int, int], int]:
        """Bytes by (source, target), sorted."""
        out: dict[tuple[int, int], int] = {}
        for move in self.plan.moves:
            pair = (move.source, move.target)
            size = bytes_of(self.plan.source.params[move.name], move.box) * self.alike[move.name]
            out[pair] = out.get(pair, 0) + size
        return dict(sorted(out.items()))

    @property
    def total(self) -> int:
        """Bytes of the model."""
        params = self.plan.source.params
        return sum(whole_bytes({name: params[name]}) * n for name, n in self.alike.items())

    def held(self, layout: Layout, rank: int) -> int:
        """Bytes that a rank holds in one of the plan's layouts."""
        return sum(
            bytes_of(layout.params[p.name], p.box) * self.alike[p.name] for p in layout.ranks[rank]
        )


def transitions(
    params: Mapping[str, ParamInfo],
    cuts: Mapping[str, Cut],
    mesh: Mesh,
    experts: ExpertGrid | None = None,
) -> list[Transition]:
    """The three groupings: zero redundancy, vanilla, and ZeRO to tensor parallel (gather all)."""
    grid = experts or ExpertGrid()
    alike = _classes(params, cuts, mesh)
    few = {name: params[name] for name in alike}
    train = grid_layout(few, cuts, mesh, None, grid)
    zero = grid_layout(few, cuts, mesh, "strided", grid)
    vanilla = grid_layout(few, cuts, mesh, "adjacent", grid)
    flat, whole = flat_layout(few, mesh.size), Layout.full(few, mesh.size)
    total, shares = whole_bytes(params), _shares(params, cuts, mesh, grid)
    ways: list[tuple[GroupingName, Layout, Layout, Layout, tuple[float, float, float]]] = [
        ("zero-redundancy", train, zero, zero, _zero(shares, mesh)),
        ("vanilla", train, vanilla, whole, _vanilla(shares, mesh, grid, total)),
        ("gather-all", flat, vanilla, whole, _gather_all(mesh, total)),
    ]
    return [_transition(*way, alike) for way in ways]


def whole_bytes(params: Mapping[str, ParamInfo]) -> int:
    """Bytes of a model."""
    return sum(bytes_of(p, Box((0,) * len(p.shape), p.shape)) for p in params.values())


def _classes(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], mesh: Mesh
) -> dict[str, int]:
    """One name of each class of parameters that are cut and placed alike, and their number."""
    layers = 1 + max((c.layer for c in cuts.values() if c.layer is not None), default=-1)
    first: dict[Any, str] = {}
    count: dict[str, int] = {}
    for name, info in params.items():
        cut = cuts[name]
        place: Any = cut.ends
        if cut.layer is not None:
            place = tuple(stage_of_layer(cut.layer, layers, n) for n in (mesh.pp, mesh.pg))
        key = (info, replace(cut, layer=None, ends=("last",)), place)
        chosen = first.setdefault(key, name)
        count[chosen] = count.get(chosen, 0) + 1
    return count


def _transition(
    name: GroupingName,
    source: Layout,
    target: Layout,
    gathered: Layout,
    expected: tuple[float, float, float],
    alike: Mapping[str, int],
) -> Transition:
    """``gathered`` is what lies on a rank in the middle, ``target`` what stays."""
    plan = Plan(source, target, tuple(missing_moves(source, gathered)))
    one = Transition(name, plan, alike, (), (), (), expected)
    received = [0] * source.world
    for (_, to), count in one.sends().items():
        received[to] += count
    ranks = range(source.world)
    outside = [outside_bytes(source, gathered, r, alike) for r in ranks]
    peak = tuple(one.held(gathered, r) + outside[r] for r in ranks)
    redundant = tuple(outside_bytes(source, target, r, alike) for r in ranks)
    return replace(one, received=tuple(received), peak=peak, redundant=redundant)


@dataclass(frozen=True)
class _Share:
    """Bytes that are cut alike: in so many parts a stage in training, and in generation."""

    size: int
    trained: int
    generated: int
    of: Literal["tensor", "expert", "none"]


def _shares(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], mesh: Mesh, grid: ExpertGrid
) -> list[_Share]:
    expert = {n: p for n, p in params.items() if cuts[n].experts}
    cut = {n: p for n, p in params.items() if cuts[n].axis is not None and n not in expert}
    same = {n: p for n, p in params.items() if n not in cut and n not in expert}
    shares = [
        _Share(whole_bytes(cut), mesh.tp, mesh.tg, "tensor"),
        _Share(whole_bytes(same), 1, 1, "none"),
    ]
    if expert:
        ep, tp, eg, tg = grid.sizes(mesh)
        shares.append(_Share(whole_bytes(expert), ep * tp, eg * tg, "expert"))
    return shares


def _zero(shares: list[_Share], mesh: Mesh) -> tuple[float, float, float]:
    kept = [(s.size, mesh.pg * s.generated, mesh.pp * s.trained) for s in shares]
    received = sum(size * (1 / after - 1 / before) for size, after, before in kept)
    return received, sum(size / after for size, after, _ in kept), 0.0


def _vanilla(
    shares: list[_Share], mesh: Mesh, grid: ExpertGrid, total: int
) -> tuple[float, float, float]:
    received = sum(s.size * (1 - 1 / (mesh.pp * s.trained)) for s in shares)

    def outside(rank: int) -> float:
        near, far = (generation_place(mesh, rank, g) for g in ("adjacent", "strided"))
        away = {"none": near[0] != far[0], "tensor": near != far, "expert": near[0] != far[0]}
        if any(s.of == "expert" for s in shares) and not away["expert"]:
            away["expert"] = grid.place(mesh, rank, "adjacent") != grid.place(mesh, rank, "strided")
        return sum(s.size / (mesh.pp * s.trained) for s in shares if away[s.of])

    return received, total, max(outside(rank) for rank in range(mesh.size))


def _gather_all(mesh: Mesh, total: int) -> tuple[float, float, float]:
    redundant = total / mesh.size if mesh.tg * mesh.pg > 1 else 0.0
    return total * (mesh.size - 1) / mesh.size, total, redundant

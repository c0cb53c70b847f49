"""Where the elements of each parameter lie. Hugging Face names and shapes are the canonical space.

A placement says, per rank, which boxes of a canonical tensor a local buffer holds. Interleaved QKV
is several boxes of one buffer; a replicated norm is the same box on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Box", "Layout", "LocalView", "Move", "ParamInfo", "Piece", "Plan", "strides"]


@dataclass(frozen=True)
class ParamInfo:
    """Canonical shape and dtype ("float32", "bfloat16", ...) of a parameter."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Box:
    """A half-open box in a canonical tensor: ``offset`` and ``shape``, in elements."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements inside."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    def intersect(self, other: Box) -> Box | None:
        """The common box, or None."""
        lo = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        ends = zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        hi = tuple(min(a + n, b + m) for a, n, b, m in ends)
        shape = tuple(h - low for h, low in zip(hi, lo, strict=True))
        return Box(lo, shape) if all(n > 0 for n in shape) else None

    def slices(self, within: Box | None = None) -> tuple[slice, ...]:
        """Index of this box in the canonical tensor, or in a buffer that holds ``within``."""
        base = within.offset if within else (0,) * len(self.offset)
        return tuple(
            slice(o - b, o - b + n) for o, b, n in zip(self.offset, base, self.shape, strict=True)
        )


@dataclass(frozen=True)
class LocalView:
    """A strided view of a local buffer: ``key`` names it in ``Strategy.views()``."""

    key: str
    offset: int
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """One box of one parameter and where a rank keeps it."""

    name: str
    box: Box
    view: LocalView


@dataclass(frozen=True)
class Layout:
    """Per rank the pieces that it holds. Equal layouts need no movement."""

    params: Mapping[str, ParamInfo]
    ranks: tuple[tuple[Piece, ...], ...]

    @classmethod
    def full(cls, params: Mapping[str, ParamInfo], ranks: int = 1) -> Layout:
        """Every rank holds every parameter whole, under its own name."""
        pieces = tuple(
            Piece(name, Box((0,) * len(p.shape), p.shape), LocalView(name, 0, strides(p.shape)))
            for name, p in params.items()
        )
        return cls(params, (pieces,) * ranks)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def beside(self, before: int = 0, after: int = 0) -> Layout:
        """The same placement among ``before`` + own + ``after`` ranks; the others hold nothing."""
        return Layout(self.params, ((),) * before + self.ranks + ((),) * after)

    def typed(self, dtype: str) -> Layout:
        """The same placement with elements of another type; "auto" keeps theirs."""
        if dtype == "auto":
            return self
        params = {name: ParamInfo(info.shape, dtype) for name, info in self.params.items()}
        return Layout(params, self.ranks)

    def same_boxes(self, other: Layout) -> bool:
        """Whether each rank holds the same boxes of the same parameters."""
        if self.world != other.world or set(self.params) != set(other.params):
            return False
        return all(
            {(p.name, p.box) for p in mine} == {(p.name, p.box) for p in theirs}
            for mine, theirs in zip(self.ranks, other.ranks, strict=True)
        )


@dataclass(frozen=True)
class Move:
    """Copy ``box`` of ``name`` from a source rank to a target rank."""

    name: str
    box: Box
    source: int
    target: int


@dataclass(frozen=True)
class Plan:
    """Who sends which box to whom; no moves means that the target shares the source's storage."""

    source: Layout
    target: Layout
    moves: tuple[Move, ...]

    @property
    def shared(self) -> bool:
        """Whether each rank's target is just what it holds, so that no copy is needed."""
        same = dict(self.source.params) == dict(self.target.params)
        return same and not self.moves and self.source.same_boxes(self.target)


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours along each dimension of a dense row-major tensor."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))

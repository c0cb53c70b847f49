"""How a call fans out over a worker group and comes back: data, not code.

A protocol says how many chunks the batch is cut into, which chunk each rank gets, and from which
ranks results are collected. All are functions of the group's mesh (HybridFlow, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

__all__ = [
    "DP_METRIC",
    "DP_PROTO",
    "ONE_TO_ALL",
    "ONE_TO_ONE",
    "Mesh",
    "Protocol",
    "protocol",
    "protocol_of",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mesh:
    """Training groups p-t-d; tensor parallel ranks are neighbours, then pipeline, then data."""

    dp: int = 1
    pp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    def dp_rank(self, rank: int) -> int:
        """Data-parallel index of a global rank."""
        return rank // (self.pp * self.tp)

    def pp_rank(self, rank: int) -> int:
        """Pipeline stage of a global rank."""
        return rank // self.tp % self.pp

    def tp_rank(self, rank: int) -> int:
        """Tensor-parallel index of a global rank."""
        return rank % self.tp


@dataclass(frozen=True)
class Protocol:
    """One row of the table.

    ``chunks``: parts of the batch on a mesh (0: arguments go whole to every caller);
    ``chunk_of``: the part of a rank, or None when the rank is not called;
    ``collected``: the ranks whose results count, in result order.
    """

    name: str
    chunks: Callable[[Mesh], int]
    chunk_of: Callable[[Mesh, int], int | None]
    collected: Callable[[Mesh], tuple[int, ...]]
    combine: Literal["concat", "list", "first"]


def _all(mesh: Mesh) -> tuple[int, ...]:
    return tuple(range(mesh.size))


def _last_stage(mesh: Mesh) -> tuple[int, ...]:
    per_replica = mesh.pp * mesh.tp
    return tuple(d * per_replica + (mesh.pp - 1) * mesh.tp for d in range(mesh.dp))


ONE_TO_ALL = Protocol("ONE_TO_ALL", lambda m: 0, lambda m, r: 0, _all, "list")
ONE_TO_ONE = Protocol(
    "ONE_TO_ONE", lambda m: 0, lambda m, r: 0 if r == 0 else None, lambda m: (0,), "first"
)
DP_PROTO = Protocol("DP_PROTO", lambda m: m.dp, lambda m, r: m.dp_rank(r), _last_stage, "concat")
DP_METRIC = Protocol("DP_METRIC", lambda m: m.dp, lambda m, r: m.dp_rank(r), _last_stage, "list")


def protocol(rule: Protocol) -> Callable[[F], F]:
    """Declare on an engine's method how calls to it fan out."""

    def mark(method: F) -> F:
        method.__protocol__ = rule  # type: ignore[attr-defined]
        return method

    return mark


def protocol_of(method: Callable[..., Any]) -> Protocol:
    """The protocol declared on a method; ONE_TO_ALL where none is."""
    rule: Protocol = getattr(method, "__protocol__", ONE_TO_ALL)
    return rule

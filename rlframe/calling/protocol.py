"""How a call fans out over a worker group and comes back: data, not code.

A protocol says how many chunks the batch is cut into, which chunk each rank gets, and from which
ranks results are collected. All are functions of the group's mesh (HybridFlow, arXiv 2409.19256,
section 4.1). ``rlframe.calling.fan_out`` carries a protocol out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from rlframe.errors import ConfigError

__all__ = [
    "ALL_TO_ALL",
    "DP_METRIC",
    "DP_PROTO",
    "ONE_TO_ALL",
    "ONE_TO_ONE",
    "THREE_D_ALL_MICRO_DP",
    "THREE_D_PP_ONLY",
    "THREE_D_PROTO",
    "Mesh",
    "Protocol",
    "protocol",
    "protocol_of",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mesh:
    """Training groups p-t-d: tensor-parallel ranks are neighbours, then pipeline, then data.

    ``pg`` and ``tg`` are the pipeline and tensor sizes of generation (0: those of training); they
    divide ``pp`` and ``tp``, and each training replica holds ``dg`` generation replicas. Their
    ranks are numbered by the zero-redundancy grouping (HybridFlow, section 5.3): a rank's training
    shard lies inside its generation shard. Raises ConfigError for sizes that do not divide.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    pg: int = 0
    tg: int = 0

    def __post_init__(self) -> None:
        for name, trained in (("pg", self.pp), ("tg", self.tp)):
            size = getattr(self, name)
            if size == 0:
                object.__setattr__(self, name, trained)
            elif size < 0 or trained % size:
                whole = "pp" if name == "pg" else "tp"
                raise ConfigError(
                    f"mesh: {name}={size} of generation does not divide {whole}={trained} of "
                    f"training; use a divisor of {trained}"
                )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    @property
    def dg(self) -> int:
        """Generation replicas in a training replica: micro-data-parallel size."""
        return self.pp * self.tp // (self.pg * self.tg)

    def dp_rank(self, rank: int) -> int:
        """Data-parallel index of a global rank."""
        return rank // (self.pp * self.tp)

    def pp_rank(self, rank: int) -> int:
        """Pipeline stage of a global rank."""
        return rank // self.tp % self.pp

    def tp_rank(self, rank: int) -> int:
        """Tensor-parallel index of a global rank."""
        return rank % self.tp

    def mdp_rank(self, rank: int) -> int:
        """Micro-data-parallel index: which generation replica of its training replica."""
        stages, shards = self.pp // self.pg, self.tp // self.tg
        return self.pp_rank(rank) % stages * shards + self.tp_rank(rank) % shards

    def gpp_rank(self, rank: int) -> int:
        """Pipeline stage in generation."""
        return self.pp_rank(rank) * self.pg // self.pp

    def gtp_rank(self, rank: int) -> int:
        """Tensor-parallel index in generation."""
        return self.tp_rank(rank) * self.tg // self.tp

    def rank_of(self, dp: int, pp: int, tp: int) -> int:
        """The global rank at these coordinates."""
        return (dp * self.pp + pp) * self.tp + tp


@dataclass(frozen=True)
class Protocol:
    """One row of the table.

    ``chunks``: parts of the batch on a mesh (0: arguments go whole to every caller);
    ``chunk_of``: the part of a rank, or None when the rank is not called;
    ``collected``: the ranks whose results count, in result order;
    ``combine``: columns of a batch joined, one result a collected rank, the first, or the mean;
    ``cut``: chunks of a batch's rows, or a sequence with one value a chunk as every argument;
    ``together``: a column whose equal values keep rows in one chunk.
    """

    name: str
    chunks: Callable[[Mesh], int]
    chunk_of: Callable[[Mesh, int], int | None]
    collected: Callable[[Mesh], tuple[int, ...]]
    combine: Literal["concat", "list", "first", "mean"]
    cut: Literal["rows", "values"] = "rows"
    together: str | None = None

    def keeping(self, column: str) -> Protocol:
        """The same rule with rows of one value of ``column`` whole in a chunk."""
        return replace(self, together=column)


def _all(mesh: Mesh) -> tuple[int, ...]:
    return tuple(range(mesh.size))


def _whole(mesh: Mesh) -> int:
    return 0


def _each(mesh: Mesh) -> int:
    return mesh.size


def _replicas(mesh: Mesh) -> int:
    return mesh.dp


def _generation_replicas(mesh: Mesh) -> int:
    return mesh.dp * mesh.dg


def _to_all(mesh: Mesh, rank: int) -> int | None:
    return 0


def _to_first(mesh: Mesh, rank: int) -> int | None:
    return 0 if rank == 0 else None


def _own(mesh: Mesh, rank: int) -> int | None:
    return rank


def _of_replica(mesh: Mesh, rank: int) -> int | None:
    return mesh.dp_rank(rank)


def _of_generation_replica(mesh: Mesh, rank: int) -> int | None:
    return mesh.dp_rank(rank) * mesh.dg + mesh.mdp_rank(rank)


def _first(mesh: Mesh) -> tuple[int, ...]:
    return (0,)


def _last_stage(mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.rank_of(d, mesh.pp - 1, 0) for d in range(mesh.dp))


def _stages(mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.rank_of(0, stage, 0) for stage in range(mesh.pp))


def _last_generation_stage(mesh: Mesh) -> tuple[int, ...]:
    """Last stage and tensor rank 0 of every generation replica, in order of chunks."""
    stages, shards = mesh.pp // mesh.pg, mesh.tp // mesh.tg
    first = (mesh.pg - 1) * stages
    return tuple(
        mesh.rank_of(d, first + m // shards, m % shards)
        for d in range(mesh.dp)
        for m in range(mesh.dg)
    )


ONE_TO_ALL = Protocol("ONE_TO_ALL", _whole, _to_all, _all, "list")
"""The same to all ranks, a list from all: model initialisation."""
ONE_TO_ONE = Protocol("ONE_TO_ONE", _whole, _to_first, _first, "first")
"""Rank 0 alone: metadata."""
DP_PROTO = Protocol("DP_PROTO", _each, _own, _all, "concat")
"""Rows split over all ranks, each its own replica: pure data parallelism."""
DP_METRIC = Protocol("DP_METRIC", _replicas, _of_replica, _last_stage, "list")
"""Rows split as by 3D_PROTO, one result a replica: metrics."""
THREE_D_PROTO = Protocol("3D_PROTO", _replicas, _of_replica, _last_stage, "concat")
"""Rows split over replicas, alike inside one; its last stage and tensor rank 0 answers."""
THREE_D_PP_ONLY = Protocol("3D_PP_ONLY", _whole, _to_all, _stages, "list")
"""The same to all; one rank of every stage of the first replica answers: names of parameters."""
THREE_D_ALL_MICRO_DP = Protocol(
    "3D_ALL_MICRO_DP",
    _generation_replicas,
    _of_generation_replica,
    _last_generation_stage,
    "concat",
)
"""Rows split over generation replicas; one rank of each answers: generation on trained ranks."""
ALL_TO_ALL = Protocol("ALL_TO_ALL", _each, _own, _all, "list", cut="values")
"""The caller gives one value a rank, in sequences; a list from all: debugging."""


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

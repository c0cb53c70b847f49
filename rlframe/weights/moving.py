"""Executing a resharding plan on the ranks that hold the weights: buckets, one collective each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlframe.weights.buckets import Exchange, Part, buckets_of, components, exchange_of
from rlframe.weights.layout import Box, Piece, Plan
from rlframe.weights.links import Links, subgroups
from rlframe.weights.storage import allocate, dtypes, local_view

__all__ = ["Mover", "components"]

_MIB = 2**20


class Mover:
    """One rank's part of a plan; made on every rank that takes part at once.

    Ranks that exchange nothing never wait for each other: each connected component of the moves (a
    micro-DP group in the HybridEngine) has a process group of its own. ``run`` returns this rank's
    target tensors by key; they are the same storage at every call. What goes over the wire has the
    target's type.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        *,
        bucket_mib: int = 64,
        connect: Callable[[Sequence[tuple[int, ...]], int], Links | None] | None = None,
    ) -> None:
        """``connect`` joins the components' groups; default: subgroups of torch's default group."""
        self._rank, self._device = rank, device
        self._types = dtypes(plan.target.params)
        parts = components(plan)
        self._members = next((m for m in parts if rank in m), ())
        self._links = (connect or subgroups)(parts, rank)
        mine = [m for m in plan.moves if m.source in self._members or m.target in self._members]
        self._buckets = buckets_of(mine, self._members, self._size, bucket_mib * _MIB)
        self._exchanges = [
            exchange_of(b, rank, self._members, self._size, lambda n: self._types[n].itemsize)
            for b in self._buckets
        ]
        self._source = _by_name(plan.source.ranks[rank] if rank < plan.source.world else ())
        self._target = _by_name(plan.target.ranks[rank] if rank < plan.target.world else ())
        self._jobs: list[_Job] = []
        self._staging: dict[str, Tensor] = {}
        self.received = sum(self._size((m.name, m.box)) for m in mine if m.target == rank)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that this one exchanges with, itself included; none where nothing moves."""
        return self._members

    @property
    def extra_bytes(self) -> int:
        """Bytes of the target's storage, which exists beside the source's."""
        return sum(_nbytes(t) for job in self._jobs for t in job.out.values())

    @property
    def staging_bytes(self) -> int:
        """Bytes of the buffers that buckets go through; kept until :meth:`release`."""
        return sum(map(_nbytes, self._staging.values()))

    @torch.no_grad()
    def run(
        self,
        views: Mapping[str, Tensor],
        keep: Mapping[str, Tensor] | None = None,
        clock: dict[str, float] | None = None,
    ) -> dict[str, Tensor]:
        """Exchange and copy; ``views`` are the source buffers of this rank by key.

        ``keep``, a result of before that is in use, is left as it is: a second storage takes turns.
        ``clock`` is told the seconds of each part.
        """
        job = next((one for one in self._jobs if not _shared(one.out, keep or {})), None)
        if job is None:
            pieces = [p for pieces in self._target.values() for p in pieces]
            job = _Job(allocate(pieces, self._types, self._device))
            self._jobs.append(job)
        where = tuple((key, view.data_ptr(), view.dtype) for key, view in views.items())
        if job.where != where:
            self._prepare(job, views)
            job.where = where
        with _timed(clock, "own"):
            job.own.run()
        for step in job.steps:
            with _timed(clock, "pack"):
                step.pack.run()
            with _timed(clock, "exchange"):
                step.exchange(self._links)
            with _timed(clock, "unpack"):
                step.unpack.run()
        return job.out

    def release(self) -> None:
        """Give the target's storage back; the next run makes it again."""
        self._jobs, self._staging = [], {}

    # --- what is copied from where to where, known before the first run -------------------------

    def _prepare(self, job: _Job, views: Mapping[str, Tensor]) -> None:
        job.own, job.steps = _Copies(), []
        for name, pieces in self._target.items():
            for piece in pieces:
                for own in self._source.get(name, ()):
                    _copy(job, piece, own.box, local_view(own, views[own.view.key]), job.own)
        outgoing = self._buffer("outgoing", [sum(one.send) for one in self._exchanges])
        incoming = self._buffer("incoming", [sum(one.receive) for one in self._exchanges])
        for one in self._exchanges:
            step = _Step(one, incoming[: sum(one.receive)], outgoing[: sum(one.send)])
            for (name, box), part in self._parts(one.sent, one.send, step.outgoing):
                held = next(p for p in self._source[name] if p.box.intersect(box) == box)
                view = local_view(held, views[held.view.key])[box.slices(held.box)]
                step.pack.add(part, view)
            for (name, box), part in self._parts(one.arrived, one.receive, step.incoming):
                for piece in self._target.get(name, ()):
                    _copy(job, piece, box, part, step.unpack)
            job.steps.append(step)

    def _parts(
        self, runs: Sequence[Sequence[Part]], sizes: Sequence[int], flat: Tensor
    ) -> Iterator[tuple[Part, Tensor]]:
        """Where in a buffer of bytes each part is."""
        begin = 0
        for parts, size in zip(runs, sizes, strict=True):
            start = begin
            for part in parts:
                name, box = part
                end = start + self._size(part)
                yield part, flat[start:end].view(self._types[name]).view(box.shape)
                start = end
            begin += size

    def _buffer(self, name: str, sizes: Sequence[int]) -> Tensor:
        """One buffer that all buckets go through."""
        if name not in self._staging:
            most = max(sizes, default=0)
            self._staging[name] = torch.empty(most, dtype=torch.uint8, device=self._device)
        return self._staging[name]

    def _size(self, part: Part) -> int:
        return int(part[1].size * self._types[part[0]].itemsize)


@dataclass
class _Copies:
    """What is copied at once: source i into target i, whatever their types."""

    into: list[Tensor] = field(default_factory=list)
    source: list[Tensor] = field(default_factory=list)

    def add(self, into: Tensor, source: Tensor) -> None:
        self.into.append(into)
        self.source.append(source)

    def run(self) -> None:
        if self.into:
            torch._foreach_copy_(self.into, self.source)


@dataclass
class _Step:
    """One exchange: copies into ``outgoing``, the collective, copies out of ``incoming``."""

    plan: Exchange
    incoming: Tensor
    outgoing: Tensor
    pack: _Copies = field(default_factory=_Copies)
    unpack: _Copies = field(default_factory=_Copies)

    def exchange(self, links: Links | None) -> None:
        assert links is not None
        if self.plan.gather:
            links.all_gather(self.incoming, self.outgoing)
        else:
            links.all_to_all(self.incoming, self.outgoing, self.plan.receive, self.plan.send)


@dataclass
class _Job:
    """Storage of a target and how it is filled from source buffers that lie at ``where``."""

    out: dict[str, Tensor]
    where: tuple[Any, ...] | None = None
    own: _Copies = field(default_factory=_Copies)
    steps: list[_Step] = field(default_factory=list)


@contextmanager
def _timed(clock: dict[str, float] | None, part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    if clock is not None:
        clock[part] = clock.get(part, 0.0) + time.perf_counter() - started


def _shared(mine: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether any of these lie in one storage."""
    held = {tensor.untyped_storage().data_ptr() for tensor in mine.values()}
    return any(tensor.untyped_storage().data_ptr() in held for tensor in others.values())


def _copy(job: _Job, piece: Piece, box: Box, data: Tensor, copies: _Copies) -> None:
    """Copy what a piece of the target and a box that is there have in common."""
    common = piece.box.intersect(box)
    if common is not None:
        view = local_view(piece, job.out[piece.view.key])
        copies.add(view[common.slices(piece.box)], data[common.slices(box)])


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    out: dict[str, list[Piece]] = {}
    for piece in pieces:
        if piece.box.size:
            out.setdefault(piece.name, []).append(piece)
    return out

"""Executing a resharding plan on the ranks that hold the weights: buckets, one collective each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlframe.layout import Box, Move, Piece, Plan
from rlframe.storage import allocate, dtypes, local_view

__all__ = ["Links", "Mover", "components"]

_MIB = 2**20


@dataclass(frozen=True)
class _Bucket:
    """Moves of one exchange inside one component; ``gather``: every member sends all the same."""

    moves: tuple[Move, ...]
    gather: bool


class Links(Protocol):
    """How the ranks of one component exchange bytes; both calls are collective and block."""

    def all_gather(self, whole: Tensor, mine: Tensor) -> None:
        """Equally many bytes of every member, one after the other, into ``whole``."""

    def all_to_all(
        self, incoming: Tensor, outgoing: Tensor, receive: list[int], send: list[int]
    ) -> None:
        """``send[i]`` bytes to the i-th member, ``receive[i]`` from it."""


class Mover:
    """One rank's part of a plan; made on every rank that takes part at once.

    Ranks that exchange nothing never wait for each other: each connected component of the moves (a
    micro-DP group in the HybridEngine) has a process group of its own. ``run`` returns this rank's
    target tensors by key; they are the same storage at every call.
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
        self._links = (connect or _subgroups)(parts, rank)
        mine = [m for m in plan.moves if m.source in self._members or m.target in self._members]
        self._buckets = _buckets(mine, self._members, self._bytes, bucket_mib * _MIB)
        self._source = _by_name(plan.source.ranks[rank] if rank < plan.source.world else ())
        self._target = _by_name(plan.target.ranks[rank] if rank < plan.target.world else ())
        self._out: dict[str, Tensor] = {}
        self.received = sum(self._bytes(m) for m in mine if m.target == rank)

    @property
    def extra_bytes(self) -> int:
        """Bytes of the target's storage, which exists beside the source's."""
        return sum(t.numel() * t.element_size() for t in self._out.values())

    @torch.no_grad()
    def run(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Exchange and copy; ``views`` are the source buffers of this rank by key."""
        if not self._out:
            pieces = [p for pieces in self._target.values() for p in pieces]
            self._out = allocate(pieces, self._types, self._device)
        for name, pieces in self._target.items():
            for piece in pieces:
                for own in self._source.get(name, ()):
                    self._copy(piece, own.box, local_view(own, views[own.view.key]))
        for bucket in self._buckets:
            self._exchange(bucket, views)
        return self._out

    def release(self) -> None:
        """Give the target's storage back; the next run makes it again."""
        self._out = {}

    def _exchange(self, bucket: _Bucket, views: Mapping[str, Tensor]) -> None:
        sends = {m: [b for b in bucket.moves if b.source == m] for m in self._members}
        if bucket.gather:
            unique = {m: list(dict.fromkeys((b.name, b.box) for b in sends[m])) for m in sends}
            self._all_gather(unique, views)
            return
        self._all_to_all(bucket.moves, views)

    def _all_gather(
        self, unique: Mapping[int, Sequence[tuple[str, Box]]], views: Mapping[str, Tensor]
    ) -> None:
        assert self._links is not None
        sizes = {m: sum(self._size(n, b) for n, b in parts) for m, parts in unique.items()}
        widest = max(sizes.values())
        mine = torch.zeros(widest, dtype=torch.uint8, device=self._device)
        self._pack(unique[self._rank], views, mine)
        whole = mine.new_empty(widest * len(self._members))
        self._links.all_gather(whole, mine)
        for place, member in enumerate(self._members):
            if member != self._rank:
                self._unpack(unique[member], whole[place * widest :])

    def _all_to_all(self, moves: Sequence[Move], views: Mapping[str, Tensor]) -> None:
        assert self._links is not None

        def parts(source: int, target: int) -> list[tuple[str, Box]]:
            return [(m.name, m.box) for m in moves if (m.source, m.target) == (source, target)]

        out = [parts(self._rank, member) for member in self._members]
        into = [parts(member, self._rank) for member in self._members]
        send = [sum(self._size(n, b) for n, b in one) for one in out]
        receive = [sum(self._size(n, b) for n, b in one) for one in into]
        outgoing = torch.empty(sum(send), dtype=torch.uint8, device=self._device)
        incoming = torch.empty(sum(receive), dtype=torch.uint8, device=self._device)
        self._pack([one for part in out for one in part], views, outgoing)
        self._links.all_to_all(incoming, outgoing, receive, send)
        self._unpack([one for part in into for one in part], incoming)

    def _pack(
        self, parts: Sequence[tuple[str, Box]], views: Mapping[str, Tensor], into: Tensor
    ) -> None:
        start = 0
        for name, box in parts:
            held = next(p for p in self._source[name] if p.box.intersect(box) == box)
            view = local_view(held, views[held.view.key])[box.slices(held.box)]
            flat = view.to(self._types[name]).contiguous().reshape(-1).view(torch.uint8)
            into[start : start + flat.numel()] = flat
            start += flat.numel()

    def _unpack(self, parts: Sequence[tuple[str, Box]], flat: Tensor) -> None:
        start = 0
        for name, box in parts:
            size = self._size(name, box)
            data = flat[start : start + size].clone().view(self._types[name]).reshape(box.shape)
            for piece in self._target.get(name, ()):
                self._copy(piece, box, data)
            start += size

    def _copy(self, piece: Piece, box: Box, data: Tensor) -> None:
        common = piece.box.intersect(box)
        if common is not None:
            view = local_view(piece, self._out[piece.view.key])
            view[common.slices(piece.box)] = data[common.slices(box)]

    def _size(self, name: str, box: Box) -> int:
        return int(box.size * self._types[name].itemsize)

    def _bytes(self, move: Move) -> int:
        return self._size(move.name, move.box)


class _Subgroup:
    """A subgroup of torch's default group, or that one itself."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def all_gather(self, whole: Tensor, mine: Tensor) -> None:
        from torch import distributed as dist

        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(whole, mine, group=self._group)

    def all_to_all(
        self, incoming: Tensor, outgoing: Tensor, receive: list[int], send: list[int]
    ) -> None:
        from torch import distributed as dist

        dist.all_to_all_single(incoming, outgoing, receive, send, group=self._group)


def _subgroups(parts: Sequence[tuple[int, ...]], rank: int) -> Links | None:
    """This rank's component; every rank makes every group, as torch wants it."""
    from torch import distributed as dist

    found = None
    for members in parts:
        group = dist.new_group(list(members)) if len(members) < dist.get_world_size() else None
        if rank in members:
            found = _Subgroup(group)
    return found


def components(plan: Plan) -> list[tuple[int, ...]]:
    """The sets of ranks that exchange with each other, directly or through others; sorted."""
    head = list(range(max(plan.source.world, plan.target.world)))

    def find(rank: int) -> int:
        while head[rank] != rank:
            head[rank] = head[head[rank]]
            rank = head[rank]
        return rank

    for source, target in {(m.source, m.target) for m in plan.moves}:
        head[find(source)] = find(target)
    sets: dict[int, list[int]] = {}
    for rank in range(len(head)):
        sets.setdefault(find(rank), []).append(rank)
    return sorted(tuple(members) for members in sets.values() if len(members) > 1)


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    out: dict[str, list[Piece]] = {}
    for piece in pieces:
        if piece.box.size:
            out.setdefault(piece.name, []).append(piece)
    return out


def _buckets(moves: Sequence[Move], members: Sequence[int], size: Any, limit: int) -> list[_Bucket]:
    """Moves in the layout's order, cut where a rank would receive more than ``limit`` bytes."""
    order = {name: i for i, name in enumerate(dict.fromkeys(m.name for m in moves))}
    buckets: list[_Bucket] = []
    part: list[Move] = []
    load: dict[int, int] = {}
    names = sorted({m.name for m in moves}, key=order.__getitem__)
    by_name: dict[str, list[Move]] = {}
    for move in moves:
        by_name.setdefault(move.name, []).append(move)
    for name in names:
        adds: dict[int, int] = {}
        for move in by_name[name]:
            adds[move.target] = adds.get(move.target, 0) + size(move)
        if part and max(load.get(r, 0) + n for r, n in adds.items()) > limit:
            buckets.append(_bucket(part, members))
            part, load = [], {}
        part += by_name[name]
        for rank, count in adds.items():
            load[rank] = load.get(rank, 0) + count
    if part:
        buckets.append(_bucket(part, members))
    return buckets


def _bucket(moves: Sequence[Move], members: Sequence[int]) -> _Bucket:
    sent: dict[int, dict[int, list[tuple[str, Box]]]] = {m: {} for m in members}
    for move in moves:
        sent[move.source].setdefault(move.target, []).append((move.name, move.box))
    gather = all(
        len(to) in (0, len(members) - 1)
        and all(one == next(iter(to.values())) for one in to.values())
        for to in sent.values()
    )
    return _Bucket(tuple(moves), gather)

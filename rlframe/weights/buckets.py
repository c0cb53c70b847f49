"""Which bytes a rank exchanges with which others by a plan: buckets, one collective each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rlframe.weights.layout import Box, Move, Plan

__all__ = ["Bucket", "Exchange", "Part", "buckets_of", "components", "exchange_of"]

Part = tuple[str, Box]
"""A box of a parameter."""
_ALIGN = 8


@dataclass(frozen=True)
class Bucket:
    """Moves of one exchange inside one component; ``gather``: every member sends all the same."""

    moves: tuple[Move, ...]
    gather: bool


@dataclass(frozen=True)
class Exchange:
    """One rank's side of a bucket: what goes to and comes from each member, and in how many bytes.

    Parts are in the order of the wire. With ``gather`` there is one run of parts to send, and
    everybody's is equally long.
    """

    gather: bool
    sent: tuple[tuple[Part, ...], ...]
    arrived: tuple[tuple[Part, ...], ...]
    send: list[int]
    receive: list[int]


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


def buckets_of(
    moves: Sequence[Move], members: Sequence[int], size: Callable[[Part], int], limit: int
) -> list[Bucket]:
    """Moves in the layout's order, cut where a rank would receive more than ``limit`` bytes."""
    order = {name: i for i, name in enumerate(dict.fromkeys(m.name for m in moves))}
    buckets: list[Bucket] = []
    part: list[Move] = []
    load: dict[int, int] = {}
    names = sorted({m.name for m in moves}, key=order.__getitem__)
    by_name: dict[str, list[Move]] = {}
    for move in moves:
        by_name.setdefault(move.name, []).append(move)
    for name in names:
        adds: dict[int, int] = {}
        for move in by_name[name]:
            adds[move.target] = adds.get(move.target, 0) + size((move.name, move.box))
        if part and max(load.get(r, 0) + n for r, n in adds.items()) > limit:
            buckets.append(_bucket(part, members))
            part, load = [], {}
        part += by_name[name]
        for rank, count in adds.items():
            load[rank] = load.get(rank, 0) + count
    if part:
        buckets.append(_bucket(part, members))
    return buckets


def _bucket(moves: Sequence[Move], members: Sequence[int]) -> Bucket:
    sent: dict[int, dict[int, list[Part]]] = {m: {} for m in members}
    for move in moves:
        sent[move.source].setdefault(move.target, []).append((move.name, move.box))
    gather = all(
        len(to) in (0, len(members) - 1)
        and all(one == next(iter(to.values())) for one in to.values())
        for to in sent.values()
    )
    return Bucket(tuple(moves), gather)


def exchange_of(
    bucket: Bucket,
    rank: int,
    members: Sequence[int],
    size: Callable[[Part], int],
    width: Callable[[str], int],
) -> Exchange:
    """What a rank does in a bucket; ``size`` is the bytes of a part, ``width`` those of an element.

    Parts of one run begin at multiples of their width, runs at multiples of eight bytes.
    """

    def run(source: int, target: int | None = None) -> tuple[Part, ...]:
        parts = (
            (m.name, m.box)
            for m in bucket.moves
            if m.source == source and target in (None, m.target)
        )
        return tuple(sorted(dict.fromkeys(parts), key=lambda part: -width(part[0])))

    def total(parts: Iterable[Part]) -> int:
        return -(-sum(map(size, parts)) // _ALIGN) * _ALIGN

    if bucket.gather:
        runs = [run(member) for member in members]
        widest = max(map(total, runs))
        arrived = tuple(() if m == rank else r for m, r in zip(members, runs, strict=True))
        return Exchange(True, (run(rank),), arrived, [widest], [widest] * len(members))
    out = tuple(run(rank, member) for member in members)
    into = tuple(run(member, rank) for member in members)
    return Exchange(False, out, into, list(map(total, out)), list(map(total, into)))

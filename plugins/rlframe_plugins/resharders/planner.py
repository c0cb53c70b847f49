"""What each rank lacks of a target layout, and from whom it gets it. Pure.

Source boxes of one parameter may repeat (replicas) and overlap; a target piece may straddle many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from rlframe.weights.layout import Box, Layout, Move, Piece, Plan

__all__ = ["missing_moves", "present", "without"]


def present(plan: Plan, gone: Collection[int]) -> Plan:
    """The same without ranks that are gone: they want nothing, and had nothing to give."""
    target = tuple(() if rank in gone else held for rank, held in enumerate(plan.target.ranks))
    moves = tuple(move for move in plan.moves if move.target not in gone)
    assert not any(move.source in gone for move in moves), "a rank that is gone is a source"
    return Plan(plan.source, Layout(plan.target.params, target), moves)


def without(box: Box, hole: Box) -> list[Box]:
    """What is left of ``box`` outside ``hole``: up to two boxes a dimension, disjoint."""
    common = box.intersect(hole)
    if common is None:
        return [box]
    parts: list[Box] = []
    offset, shape = list(box.offset), list(box.shape)
    for axis in range(len(shape)):
        low = common.offset[axis] - offset[axis]
        high = offset[axis] + shape[axis] - common.offset[axis] - common.shape[axis]
        if low:
            parts.append(_with(offset, shape, axis, offset[axis], low))
        if high:
            end = common.offset[axis] + common.shape[axis]
            parts.append(_with(offset, shape, axis, end, high))
        offset[axis], shape[axis] = common.offset[axis], common.shape[axis]
    return parts


def missing_moves(source: Layout, target: Layout, *, node_size: int = 0) -> list[Move]:
    """For every target rank the boxes that it does not hold itself, each from one owner.

    The owner is one on the target's node (``node_size`` ranks a node; 0: all on one) before others;
    among these the nearest rank where the target is a rank of the source too (so that a replica is
    served by itself), else the one that has sent least so far. Raises ValueError where nobody holds
    an element.
    """
    owners = _owners(source)
    sent = [0] * max(source.world, target.world)
    moves: list[Move] = []
    for rank, pieces in enumerate(target.ranks):
        mine = _boxes(source.ranks[rank]) if rank < source.world else {}
        near = rank if mine else None

        def cost(owner: int, rank: int = rank, near: int | None = near) -> tuple[bool, int, int]:
            away = abs(owner - rank)
            first, second = (sent[owner], away) if near is None else (away, sent[owner])
            return _far(owner, rank, node_size), first, second

        for name, box in dict.fromkeys((p.name, p.box) for p in pieces):
            todo = _outside([box] if box.size else [], mine.get(name, ()))
            for part, owner in _serve(name, todo, owners, cost):
                sent[owner] += part.size
                moves.append(Move(name, part, owner, rank))
    return moves


def _with(offset: list[int], shape: list[int], axis: int, start: int, count: int) -> Box:
    moved, cut = list(offset), list(shape)
    moved[axis], cut[axis] = start, count
    return Box(tuple(moved), tuple(cut))


def _outside(boxes: list[Box], holes: Iterable[Box]) -> list[Box]:
    for hole in holes:
        boxes = [part for box in boxes for part in without(box, hole)]
    return boxes


def _boxes(pieces: Iterable[Piece]) -> dict[str, list[Box]]:
    out: dict[str, list[Box]] = {}
    for piece in pieces:
        if piece.box.size:
            out.setdefault(piece.name, []).append(piece.box)
    return out


def _owners(source: Layout) -> dict[str, dict[Box, list[int]]]:
    """Per parameter its distinct boxes and the ranks that hold each."""
    out: dict[str, dict[Box, list[int]]] = {}
    for rank, pieces in enumerate(source.ranks):
        for piece in pieces:
            if piece.box.size:
                holders = out.setdefault(piece.name, {}).setdefault(piece.box, [])
                if not holders or holders[-1] != rank:
                    holders.append(rank)
    return out


def _serve(
    name: str,
    todo: list[Box],
    owners: dict[str, dict[Box, list[int]]],
    cost: Callable[[int], tuple[bool, int, int]],
) -> Iterator[tuple[Box, int]]:
    for held, ranks in owners.get(name, {}).items():
        if not todo:
            return
        hits = [part for box in todo if (part := box.intersect(held)) is not None]
        if not hits:
            continue
        owner = min(ranks, key=cost)
        for part in hits:
            yield part, owner
        todo = [rest for box in todo for rest in without(box, held)]
    if todo:
        raise ValueError(f"no rank holds all of '{name}': {todo[0]} is missing")


def _far(a: int, b: int, node_size: int) -> bool:
    return bool(node_size) and a // node_size != b // node_size

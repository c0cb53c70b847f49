"""Bytes that a rank holds in a layout, and those that are of no use to another layout. Pure."""

from __future__ import annotations

from rlframe.layout import Box, Layout
from rlframe_plugins.resharders.planner import without
from rlframe_plugins.resharders.report import bytes_of

__all__ = ["held_bytes", "outside_bytes"]


def held_bytes(layout: Layout, rank: int) -> int:
    """Bytes of a rank's pieces."""
    return sum(bytes_of(layout.params[piece.name], piece.box) for piece in layout.ranks[rank])


def outside_bytes(source: Layout, target: Layout, rank: int) -> int:
    """Bytes of a rank's source pieces that lie outside its target: logical redundancy."""
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

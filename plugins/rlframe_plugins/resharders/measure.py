"""Bytes that a rank holds in a layout, and those that are of no use to another layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rlframe.weights.layout import Box, Layout, ParamInfo
from rlframe_plugins.resharders.planner import without

__all__ = ["bytes_of", "held_bytes", "outside_bytes"]

_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


def bytes_of(info: ParamInfo, box: Box) -> int:
    """Bytes of a box."""
    return box.size * _WIDTH[info.dtype]


def held_bytes(layout: Layout, rank: int) -> int:
    """Bytes of a rank's pieces."""
    return sum(bytes_of(layout.params[piece.name], piece.box) for piece in layout.ranks[rank])


def outside_bytes(
    source: Layout, target: Layout, rank: int, alike: Mapping[str, int] | None = None
) -> int:
    """Bytes of a rank's source pieces that lie outside its target: logical redundancy.

    ``alike`` says how many parameters each one stands for; None: for itself.
    """
    held: dict[str, list[Box]] = {}
    for piece in target.ranks[rank]:
        held.setdefault(piece.name, []).append(piece.box)
    total = 0
    for piece in source.ranks[rank]:
        rest = [piece.box] if piece.box.size else []
        for box in held.get(piece.name, ()):
            rest = [part for one in rest for part in without(one, box)]
        count = 1 if alike is None else alike[piece.name]
        total += sum(bytes_of(source.params[piece.name], part) for part in rest) * count
    return total

"""The plain plan: every target rank gets every box whole, from its first owner."""

from __future__ import annotations

from rlframe.interfaces.checkpoint import Resharder
from rlframe.weights.layout import Layout, Move, Plan

__all__ = ["GatherAll"]


class GatherAll(Resharder):
    """What all-gather based engines do: (N - 1) / N of the weights are received by every rank.

    Equal layouts need no move. Neighbours form a generation replica.
    """

    grouping = "adjacent"

    def plan(self, source: Layout, target: Layout) -> Plan:
        """See :class:`Resharder`."""
        if source.same_boxes(target):
            return Plan(source, target, ())
        first: dict[tuple[str, object], int] = {}
        for rank, pieces in enumerate(source.ranks):
            for piece in pieces:
                first.setdefault((piece.name, piece.box), rank)
        moves = [
            Move(piece.name, piece.box, owner, rank)
            for rank in range(target.world)
            if target.ranks[rank]
            for pieces in source.ranks
            for piece in pieces
            if (owner := first[piece.name, piece.box]) != rank
        ]
        return Plan(source, target, tuple(dict.fromkeys(moves)))

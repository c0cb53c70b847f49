"""Gather the whole replica, keep the own part: what HybridFlow compares its grouping with."""

from __future__ import annotations

from rlframe.interfaces.checkpoint import Resharder
from rlframe.weights.layout import Layout, Plan
from rlframe_plugins.resharders.planner import missing_moves

__all__ = ["Vanilla"]


class Vanilla(Resharder):
    """Every rank with a target receives all that it lacks of the model, from its nearest owners.

    (t p - 1) / (t p) of the weights are received by each rank, and all of them lie there at once.
    Neighbours form a generation replica.
    """

    grouping = "adjacent"

    def plan(self, source: Layout, target: Layout) -> Plan:
        """See :class:`Resharder`."""
        if source.same_boxes(target):
            return Plan(source, target, ())
        whole = Layout.full(source.params, 1).ranks[0]
        wanted = Layout(target.params, tuple(whole if pieces else () for pieces in target.ranks))
        return Plan(source, target, tuple(missing_moves(source, wanted)))

"""Every rank keeps what it has and receives just what it lacks (HybridFlow, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe.config import check_range
from rlframe.interfaces.checkpoint import Resharder
from rlframe.weights.layout import Layout, Plan
from rlframe_plugins.resharders.planner import missing_moves

__all__ = ["ZeroRedundancy"]


class ZeroRedundancy(Resharder):
    """Target box minus own boxes, each missing part from its least-loaded nearest owner.

    Where the generation grouping puts training shards inside generation shards, no training byte
    lies outside: (t p - tg pg) / (tg pg t p) of the weights are received by each rank.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the planner."""

        node_size: int = 0
        """Ranks a node, at least 0; 0 takes all ranks as equally near."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "node_size", 0)

    def plan(self, source: Layout, target: Layout) -> Plan:
        """See :class:`Resharder`."""
        if source.same_boxes(target):
            return Plan(source, target, ())
        moves = missing_moves(source, target, node_size=self.config.node_size)
        return Plan(source, target, tuple(moves))

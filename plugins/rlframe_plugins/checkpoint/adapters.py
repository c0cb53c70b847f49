"""Adapters alone to replicas in other pools, which add them to the base that they keep."""

from __future__ import annotations

from collections.abc import Callable

from rlframe.interfaces.checkpoint import Transport
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.weights.adapters import Adapters
from rlframe.weights.layout import Layout, Plan
from rlframe_plugins.resharders.planner import missing_moves

__all__ = ["AdapterSync"]


class AdapterSync:
    """The base travels once, in the first version and after a failure; then adapters only.

    Each replica's rank gets the adapters whole and merges its part of the weights.
    """

    def __init__(
        self,
        adapters: Adapters,
        plan: Plan,
        transports: tuple[Transport, Transport],
        sources: WorkerGroup,
        targets: WorkerGroup,
    ) -> None:
        self._adapters, self._served = adapters, plan.target.params
        # Rounded after merging, as the trainer's own weights are, not before.
        exact = Layout(plan.source.params, plan.target.ranks)
        self._plan = Plan(plan.source, exact, plan.moves)
        self.transports = transports
        source = adapters.layout.beside(after=targets.mesh.size)
        whole = Layout.full(adapters.layout.params, targets.mesh.size)
        target = whole.beside(before=sources.mesh.size)
        moves = tuple(missing_moves(source, target))
        self._low_plan = Plan(source, target, moves)

    def move(
        self, version: int, exchange: Callable[..., int], *, full: bool, late: bool = False
    ) -> int:
        """Bring every replica to ``version``, beside what it serves; bytes that moved.

        ``exchange`` calls trainers and replicas: a transport, and what to call on which.
        """
        moved = 0
        if full:
            base, plan = self.transports[0], self._plan
            moved += exchange(
                base,
                ("stage_part", base, plan, version, True, "base"),
                ("fetch_base", base, plan, self._served, version),
                late,
            )
        low, plan = self.transports[1], self._low_plan
        return moved + exchange(
            low,
            ("stage_part", low, plan, version, full, "adapters"),
            ("fetch_adapters", low, plan, self._adapters, version),
            late,
        )

"""Accepted groups that wait to be learned from: what was over-produced is kept, not thrown away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.interfaces.loop import Sampler
from rlframe.requests import Group

__all__ = ["Buffer", "InOrder"]


class InOrder(Sampler):
    """The oldest draw first."""

    def choose(self, waiting: Sequence[Group], count: int, version: int) -> list[int]:
        """See :class:`Sampler`."""
        order = sorted(range(len(waiting)), key=lambda i: waiting[i].row.group_id)
        return order[:count]


class Buffer:
    """Groups by arrival; :meth:`take` asks the sampler which come next. Part of the snapshot."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = sampler or InOrder()
        self._groups: list[Group] = []

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, groups: Sequence[Group]) -> None:
        """Add accepted groups."""
        self._groups.extend(groups)

    def take(self, count: int, version: int = 0) -> list[Group]:
        """Remove and return ``count`` groups in learning order; raises ValueError if too few."""
        if count > len(self._groups):
            raise ValueError(f"{count} groups asked of {len(self._groups)}")
        chosen = self._sampler.choose(self._groups, count, version)
        taken = [self._groups[i] for i in chosen]
        gone = set(chosen)
        self._groups = [g for i, g in enumerate(self._groups) if i not in gone]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Waiting groups as JSON values."""
        from rlframe.snapshot_groups import group_to_state

        return {"groups": [group_to_state(group) for group in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        from rlframe.snapshot_groups import group_from_state

        self._groups = [group_from_state(group) for group in state["groups"]]

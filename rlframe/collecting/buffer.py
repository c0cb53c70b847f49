"""Accepted groups waiting to be learned from. What was over-produced is kept, not thrown away."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlframe.batching.columns import Schema
from rlframe.collecting.entry import GroupEntry
from rlframe.interfaces.loop import Sampler
from rlframe.interfaces.transfer import TransferEngine

__all__ = ["Buffer", "InOrder", "Sorted", "buffer_state"]


class Sorted(Sampler):
    """Takes groups by a key, the least first."""

    @abstractmethod
    def key(self, entry: GroupEntry) -> Any:
        """What groups are sorted by."""

    def choose(
        self,
        waiting: Sequence[GroupEntry],
        count: int,
        version: int,
        played: Sequence[int] = (),
    ) -> list[int]:
        """See :class:`Sampler`."""
        return sorted(range(len(waiting)), key=lambda i: self.key(waiting[i]))[:count]


class InOrder(Sorted):
    """The oldest draw first."""

    def key(self, entry: GroupEntry) -> Any:
        """See :class:`Sorted`."""
        return entry.group_id


class Buffer:
    """Groups by arrival; :meth:`take` asks the sampler which come next. Part of the snapshot."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = sampler or InOrder()
        self._groups: list[GroupEntry] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupEntry]:
        return iter(self._groups)

    def put(self, groups: Sequence[GroupEntry]) -> None:
        """Add accepted groups."""
        self._groups.extend(groups)

    def take(self, count: int, version: int = 0) -> list[GroupEntry]:
        """Remove and return ``count`` groups in learning order; raises ValueError if too few."""
        if count > len(self._groups):
            raise ValueError(f"{count} groups asked of {len(self._groups)}")
        chosen = self._sampler.choose(self._groups, count, version)
        taken = [self._groups[i] for i in chosen]
        self._keep(set(range(len(self._groups))) - set(chosen))
        return taken

    def drop(self, unwanted: Callable[[GroupEntry], bool]) -> list[GroupEntry]:
        """Remove and return the groups that are no longer wanted."""
        gone = [i for i, group in enumerate(self._groups) if unwanted(group)]
        dropped = [self._groups[i] for i in gone]
        self._keep(set(range(len(self._groups))) - set(gone))
        return dropped

    def state_dict(self) -> dict[str, Any]:
        """Waiting groups with all of their columns, which are read here."""
        return buffer_state(self._groups)

    def load_state_dict(
        self, state: Mapping[str, Any], *, schema: Schema, transfer: TransferEngine
    ) -> None:
        """The reverse of :meth:`state_dict`; the columns are stored in ``transfer``."""
        from rlframe.snapshots.groups import entries_from_state

        self._groups = entries_from_state(state["groups"], schema, transfer)

    def _keep(self, positions: set[int]) -> None:
        self._groups = [g for i, g in enumerate(self._groups) if i in positions]


def buffer_state(waiting: Sequence[GroupEntry]) -> dict[str, Any]:
    """The state of a buffer in which these groups wait; their columns are read here."""
    from rlframe.snapshots.groups import entries_to_state

    return {"groups": entries_to_state(waiting)}

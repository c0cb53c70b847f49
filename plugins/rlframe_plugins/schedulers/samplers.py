"""Which waiting groups a step takes, where it may choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlframe.collecting.buffer import InOrder, Sorted
from rlframe.collecting.entry import GroupEntry
from rlframe.interfaces.loop import Sampler

__all__ = ["Freshest", "InOrder", "Windowed"]


class Freshest(Sorted):
    """The groups of the newest weights first; of equal ones the earliest draw."""

    def key(self, entry: GroupEntry) -> Any:
        """See :class:`Sorted`."""
        return -entry.oldest_version, entry.group_id


class Windowed(Sampler):
    """The earliest draws, from a window at the head of the queue: twice what is to be chosen.

    What ended beyond the window waits until slow groups at its head have ended too, so that quick
    ones of later prompts never push them aside: a batch is not biased to short responses, and no
    step waits for all of an earlier one.
    """

    def choose(
        self,
        waiting: Sequence[GroupEntry],
        count: int,
        version: int,
        played: Sequence[int] = (),
    ) -> list[int]:
        """See :class:`Sampler`."""
        queue = sorted([*played, *(entry.group_id for entry in waiting)])
        window = set(queue[: 2 * count])
        order = sorted(range(len(waiting)), key=lambda i: waiting[i].group_id)
        return [i for i in order if waiting[i].group_id in window][:count]

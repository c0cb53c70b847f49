"""How many groups may be started, and which must be learned from now. Pure.

Weights are numbered; a group that version ``born`` began to sample may be learned from up to
version ``born + bound``. A step of ``count`` groups is taken at each version.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["admissible", "due"]


def admissible(bound: int, count: int, unused: int, steps_left: int) -> int:
    """Groups that may be started now, so that each can be learned from in time.

    ``unused`` groups are played or wait; ``steps_left`` steps are still to be taken. Closed form of
    the staleness bound of AReaL (arXiv 2505.24298, section 5.1), with what is unused counted
    instead of all that were ever started, and never more than the run can use.
    """
    return max(0, count * min(bound + 1, steps_left) - unused)


def due(
    played: Sequence[int], waiting: Sequence[int], *, version: int, bound: int, count: int
) -> list[int] | None:
    """Positions in ``waiting`` that this step must take for the rest to be in time.

    ``played`` and ``waiting`` are the versions that the groups were born at, still open or done;
    of equal age the earlier position goes first. None: some that are still played must be waited
    for. By the condition of earliest deadlines: after this step at most ``k * count`` groups may be
    left whose last version is at most ``version + k``, for every k (those of more steps than there
    are groups hold anyway).
    """
    order = sorted(range(len(waiting)), key=lambda i: (waiting[i], i))
    chosen: list[int] = []
    steps = -(-(len(played) + len(waiting)) // count)
    for ahead in range(min(bound, steps) + 1):
        born = version + ahead - bound
        urgent = sum(b <= born for b in played) + sum(b <= born for b in waiting)
        missing = urgent - ahead * count - len(chosen)
        if missing <= 0:
            continue
        ready = [i for i in order if waiting[i] <= born and i not in chosen]
        if len(ready) < missing:
            return None
        chosen += ready[:missing]
    return chosen

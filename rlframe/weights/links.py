"""How the ranks that carry out a plan reach each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Links", "in_pairs", "subgroups"]


class Links(Protocol):
    """How the ranks of one component exchange bytes; both calls are collective and block."""

    def all_gather(self, whole: Tensor, mine: Tensor) -> None:
        """Equally many bytes of every member, one after the other, into ``whole``.

        The caller's own place there may stay as it was.
        """

    def all_to_all(
        self, incoming: Tensor, outgoing: Tensor, receive: list[int], send: list[int]
    ) -> None:
        """``send[i]`` bytes to the i-th member, ``receive[i]`` from it."""


class _Subgroup:
    """A subgroup of torch's default group, or that one itself."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def all_gather(self, whole: Tensor, mine: Tensor) -> None:
        from torch import distributed as dist

        group = self._group or dist.group.WORLD
        if dist.get_backend(group) == "gloo" or mine.device.type == "cpu":
            in_pairs(group, whole, mine)
            return
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(whole, mine, group=group)

    def all_to_all(
        self, incoming: Tensor, outgoing: Tensor, receive: list[int], send: list[int]
    ) -> None:
        from torch import distributed as dist

        dist.all_to_all_single(incoming, outgoing, receive, send, group=self._group)


def in_pairs(group: Any, whole: Tensor, mine: Tensor) -> None:
    """An all-gather by messages between pairs, the own place left as it is.

    Gloo's own gathers into a buffer of its own first, which costs a copy and as much memory.
    """
    size, rank = group.size(), group.rank()
    places = whole.view(size, -1)
    works = []
    for step in range(1, size):
        into, out = (rank - step) % size, (rank + step) % size
        works.append(group.recv([places[into]], into, 0))
        works.append(group.send([mine], out, 0))
    for work in works:
        work.wait()


def subgroups(parts: Sequence[tuple[int, ...]], rank: int) -> Links | None:
    """This rank's component; every rank makes every group, as torch wants it."""
    from torch import distributed as dist

    found = None
    for members in parts:
        group = dist.new_group(list(members)) if len(members) < dist.get_world_size() else None
        if rank in members:
            found = _Subgroup(group)
    return found

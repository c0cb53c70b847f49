"""How the workers of a rollout replica are started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlframe_plugins.clusters.ray.actor import Where

__all__ = ["Restarts"]


@dataclass(frozen=True)
class Restarts:
    """How often one replica is started again, and the pause before; it doubles up to a minute.

    ``replicas``: the ranks of each; ``meeting`` makes a place where such ranks find each other.
    """

    limit: int
    wait_s: float
    start_timeout_s: float
    replicas: Sequence[Sequence[int]]
    meeting: Callable[[Sequence[Where]], str]

    @property
    def by_ray(self) -> int:
        """How often Ray may start a process again: one may die while its replica is ended."""
        return self.limit * max(map(len, self.replicas))

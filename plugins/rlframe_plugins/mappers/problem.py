"""The search problem as plain arrays, whatever the seconds and bytes came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Choices", "Couple", "Found", "Objective", "Problem"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Couple = Callable[[Ints, Ints], tuple[Floats, Floats]]
"""Ways of the policy and of the rollout (k,) on one pool to: publish seconds, bytes saved (k,)."""


@dataclass(frozen=True)
class Choices:
    """Ways of one unit: ``grains`` (k,), ``seconds`` (k, 4) by stage, bytes of a device (k,).

    ``resident`` bytes stay while others of the set work; ``working`` bytes come on top in its own
    turn. Ways of equal ``key`` (k,) couple equally with every way of the partner. ``host`` bytes of
    each host that the pool is on stay too.
    """

    grains: Ints
    seconds: Floats
    resident: Floats
    working: Floats
    key: Ints
    host: Floats

    def __len__(self) -> int:
        return len(self.grains)


@dataclass(frozen=True)
class Objective:
    """Seconds a step from the seconds of every pool; smaller in any column is never worse.

    ``staleness`` None: the stages follow each other (sync). Else the rollout, alone in its pool,
    may run up to ``staleness`` steps ahead: the period of the list schedule in steady state.
    """

    staleness: int | None = None

    def columns(self, seconds: Floats, has_policy: bool) -> Floats:
        """What counts of a set's stage seconds (k, 4): columns that pools join by maximum."""
        if self.staleness is None:
            return seconds
        prepare, learn = seconds[:, 1], seconds[:, 2]
        own = prepare if has_policy else np.zeros_like(prepare)
        return np.column_stack([seconds, prepare + learn, own])

    def value(self, columns: Floats) -> Floats:
        """Seconds a step, from joined columns (k, c) to (k,)."""
        collect, prepare, learn, publish = columns[:, :4].T
        if self.staleness is None:
            return np.asarray(columns.sum(axis=1))
        busy, own = columns[:, 4], columns[:, 5]
        cycle = (collect + prepare + learn + publish) / (1 + self.staleness)
        policy = own + learn + publish
        return np.asarray(np.maximum.reduce([busy, policy, collect + publish, cycle]))


@dataclass(frozen=True)
class Problem:
    """Place ``names`` on ``grains`` grains (nodes, or devices of one node)."""

    names: tuple[str, ...]
    grains: int
    capacity: float
    choices: tuple[Choices, ...]
    twins: tuple[int, ...]
    """Class of each unit: units of one class cost the same and may be swapped."""
    pair: tuple[int, int] | None = None
    """Indices of the policy and of the rollout."""
    couple: Couple | None = None
    objective: Objective = field(default_factory=Objective)
    alone: frozenset[int] = frozenset()
    """Units that share a pool with nobody."""
    together: tuple[frozenset[int], ...] = ()
    """Units that must share a pool."""
    host_capacity: float = np.inf
    """Bytes of a host; ``capacity`` is that of a device."""
    one_host: bool = False
    """Whether all pools are on one host and share its memory; else each has hosts of its own."""

    def allows(self, partition: Sequence[Sequence[int]]) -> bool:
        """Whether a partition keeps ``alone`` and ``together``."""
        for members in partition:
            if len(members) > 1 and self.alone & set(members):
                return False
            if any(group & set(members) and not group <= set(members) for group in self.together):
                return False
        return True

    def has_pair(self, members: Sequence[int]) -> bool:
        """Whether policy and rollout are both in a set."""
        return self.pair is not None and set(self.pair) <= set(members)


@dataclass(frozen=True)
class Found:
    """The best placement of one partition: per set its grains and a way for each unit."""

    value: float
    sets: tuple[tuple[int, ...], ...]
    grains: tuple[int, ...]
    ways: tuple[tuple[int, ...], ...]
    """Per set, per member in order: index into that unit's choices."""

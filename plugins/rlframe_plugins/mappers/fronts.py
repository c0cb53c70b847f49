"""Pareto fronts of sets: seconds by stage against memory, since memory belongs to the set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlframe_plugins.mappers.pareto import front
from rlframe_plugins.mappers.problem import Floats, Ints, Problem

__all__ = ["SetFront", "SetFronts", "SetTable", "least_table", "set_table"]

_RESIDENT, _WORKING, _HOST = 4, 5, 6


@dataclass(frozen=True)
class SetFront:
    """Ways of a set on one pool size that no other way beats.

    ``rows`` (k, 7): four stage seconds, resident, working and host bytes; ``ways`` (k, members):
    the choice of each member.
    """

    rows: Floats
    ways: Ints


def _scarce(problem: Problem) -> frozenset[int]:
    """Pool sizes on which host memory may run out; elsewhere it need not be looked at.

    On one host pools share it, so that it may run out on all sizes or on none.
    """
    most = np.zeros(problem.grains + 1)
    for choices in problem.choices:
        own = np.zeros_like(most)
        inside = choices.grains <= problem.grains
        np.maximum.at(own, choices.grains[inside], choices.host[inside])
        most += own.max() if problem.one_host else own
    return frozenset(np.flatnonzero(most > problem.host_capacity).tolist())


class SetFronts:
    """Fronts by set and pool size, each built once from the front of one member less.

    Ways with which a step cannot stay below ``limit`` seconds are left out.
    """

    def __init__(self, problem: Problem, limit: float = np.inf) -> None:
        self.problem = problem
        self.limit = limit
        self._scarce = _scarce(problem)
        self._units = [self._by_grains(unit) for unit in range(len(problem.names))]
        self._least = [self._least_by_grains(unit) for unit in range(len(problem.names))]
        self._sets: dict[tuple[int, ...], dict[int, SetFront]] = {}

    def _least_by_grains(self, unit: int) -> Floats:
        """(grains + 1, 4): least seconds of each stage on at most so many grains."""
        table = np.full((self.problem.grains + 1, 4), np.inf)
        for n, own in self._units[unit].items():
            table[n] = own.rows[:, :4].min(axis=0)
        return np.asarray(np.minimum.accumulate(table))

    def least(self, members: tuple[int, ...]) -> Floats:
        """(grains + 1, 4): seconds that a set takes at the least, whatever its memory."""
        total = np.sum([self._least[unit] for unit in members], axis=0)
        if self.problem.has_pair(members):
            total[:, 3] = 0.0
        return np.asarray(total)

    def others(self, members: tuple[int, ...], grains: Ints) -> Floats:
        """(k, 4): least seconds of the other units on what ``grains`` (k,) of the set leave."""
        least = np.zeros((len(grains), 4))
        for unit in set(range(len(self.problem.names))) - set(members):
            own = self._least[unit][np.maximum(self.problem.grains - grains, 0), :3]
            least[:, :3] = np.maximum(least[:, :3], own)
        return least

    def _keep(self, rows: Floats, ways: Ints, members: tuple[int, ...], grains: int) -> SetFront:
        """Rows that fit, may win, and are not beaten."""
        fits = rows[:, _RESIDENT] + rows[:, _WORKING] <= self.problem.capacity
        fits &= rows[:, _HOST] <= self.problem.host_capacity
        rows, ways = rows[fits], ways[fits]
        if len(rows) and self.limit < np.inf:
            alive = self._bound(rows, members, grains) < self.limit
            rows, ways = rows[alive], ways[alive]
        best = front(rows)
        return SetFront(rows[best], ways[best])

    def _bound(self, rows: Floats, members: tuple[int, ...], grains: int) -> Floats:
        """Seconds a step at the least with these rows, wherever the other units are."""
        elsewhere = max(grains, self.problem.grains - grains)
        others = [u for u in range(len(self.problem.names)) if u not in members]
        policy = self.problem.pair is not None and self.problem.pair[0] in members
        columns = self.problem.objective.columns(rows[:, :4], policy).copy()
        for unit in others:
            least = self._least[unit][elsewhere].copy()
            if self.problem.pair is not None and unit in self.problem.pair:
                least[3] = 0.0
            columns[:, :4] = np.maximum(columns[:, :4], least)
        return self.problem.objective.value(columns)

    def _rows(self, unit: int, chosen: Ints, grains: int) -> Floats:
        choices = self.problem.choices[unit]
        host = choices.host[chosen] * (grains in self._scarce)
        memory = (choices.resident[chosen], choices.working[chosen], host)
        return np.column_stack([choices.seconds[chosen], *memory])

    def _by_grains(self, unit: int) -> dict[int, SetFront]:
        """A unit's own ways that are worth something: a front for each grains and key."""
        choices = self.problem.choices[unit]
        paired = self.problem.pair is not None and unit in self.problem.pair
        fits = choices.resident + choices.working <= self.problem.capacity
        if paired:
            fits = np.isfinite(choices.resident)
        fits &= choices.host <= self.problem.host_capacity
        result: dict[int, SetFront] = {}
        for grains in np.unique(choices.grains).tolist():
            here = np.flatnonzero((choices.grains == grains) & fits)
            kept = []
            for key in np.unique(choices.key[here]) if paired else (None,):
                same = here if key is None else here[choices.key[here] == key]
                kept.append(same[front(self._rows(unit, same, grains))])
            chosen = np.concatenate(kept) if kept else here
            if len(chosen):
                result[grains] = SetFront(self._rows(unit, chosen, grains), chosen[:, None])
        return result

    def of(self, members: tuple[int, ...]) -> dict[int, SetFront]:
        """Fronts of a set by pool size; sizes on which it cannot run are left out.

        The policy and the rollout, where both are members, are the first two.
        """
        if members not in self._sets:
            self._sets[members] = self._build(members)
        return self._sets[members]

    def _build(self, members: tuple[int, ...]) -> dict[int, SetFront]:
        if len(members) == 1:
            alone = self._units[members[0]]
            kept = {n: self._keep(f.rows, f.ways, members, n) for n, f in alone.items()}
            return {n: f for n, f in kept.items() if len(f.rows)}
        if self.problem.pair is not None and set(members) == set(self.problem.pair):
            return self._couple(*self.problem.pair)
        head, last = self.of(members[:-1]), self._units[members[-1]]
        merged = {n: self._merge(head[n], last[n], members, n) for n in head if n in last}
        return {n: f for n, f in merged.items() if len(f.rows)}

    def _merge(
        self, head: SetFront, last: SetFront, members: tuple[int, ...], grains: int
    ) -> SetFront:
        """Members work in turn: seconds and bytes that stay add, the larger working bytes count."""
        i, j = (x.ravel() for x in np.indices((len(head.rows), len(last.rows))))
        rows = head.rows[i] + last.rows[j]
        rows[:, _WORKING] = np.maximum(head.rows[i, _WORKING], last.rows[j, _WORKING])
        return self._keep(rows, np.column_stack([head.ways[i], last.ways[j]]), members, grains)

    def _couple(self, policy: int, rollout: int) -> dict[int, SetFront]:
        """Policy and rollout on one pool: a transition in place of sending and receiving."""
        result = {}
        couple = self.problem.couple
        assert couple is not None
        for n in set(self._units[policy]) & set(self._units[rollout]):
            a, b = self._units[policy][n], self._units[rollout][n]
            i, j = (x.ravel() for x in np.indices((len(a.rows), len(b.rows))))
            seconds, saved = couple(a.ways[i, 0], b.ways[j, 0])
            rows = a.rows[i] + b.rows[j]
            rows[:, 3] = seconds
            target = b.rows[j, _WORKING] - saved
            rows[:, _WORKING] = np.maximum(a.rows[i, _WORKING], target)
            ways = np.column_stack([a.ways[i], b.ways[j]])
            kept = self._keep(rows, ways, (policy, rollout), n)
            if len(kept.rows):
                result[n] = kept
        return result


@dataclass(frozen=True)
class SetTable:
    """A set on every pool size: what an allocation trades. Rows (k,), smaller is better.

    ``host`` (k,) are bytes of a host that sets share, 0 where each has hosts of its own.
    """

    members: tuple[int, ...]
    grains: NDArray[np.int64]
    columns: Floats
    ways: Ints
    host: Floats

    @cached_property
    def least(self) -> Floats:
        """The smallest of each column (c,)."""
        return np.asarray(self.columns.min(axis=0))

    def least_on(self, grains: Ints) -> Floats:
        """The smallest of each column on at most so many grains: (k,) to (k, c)."""
        return np.asarray(self._curve[np.clip(grains, 0, len(self._curve) - 1)])

    @cached_property
    def _curve(self) -> Floats:
        """Least columns by grains (n + 1, c); infinite where the set does not fit."""
        curve = np.full((int(self.grains.max()) + 1, self.columns.shape[1]), np.inf)
        np.minimum.at(curve, self.grains, self.columns)
        return np.asarray(np.minimum.accumulate(curve))

    @cached_property
    def fewest(self) -> int:
        """Fewest grains on which the set runs."""
        return int(self.grains.min())


def least_table(fronts: SetFronts, members: tuple[int, ...]) -> SetTable | None:
    """A bound of :func:`set_table` that ignores shared memory: one row a pool size."""
    problem = fronts.problem
    seconds = fronts.least(members)
    better = np.flatnonzero(np.isfinite(seconds).all(axis=1))
    better = better[front(np.column_stack([better, seconds[better]]))] if len(better) else better
    if not len(better):
        return None
    has_policy = problem.pair is not None and problem.pair[0] in members
    columns = problem.objective.columns(seconds[better], has_policy)
    ways = np.zeros((len(better), len(members)), np.int64)
    return SetTable(members, better, columns, ways, np.zeros(len(better)))


def set_table(fronts: SetFronts, members: tuple[int, ...]) -> SetTable | None:
    """All pool sizes of a set in one front over grains, time, and what sets share of a host.

    None where it never fits.
    """
    problem = fronts.problem
    by_size = fronts.of(members)
    if not by_size:
        return None
    has_policy = problem.pair is not None and problem.pair[0] in members
    grains = np.concatenate([np.full(len(f.rows), n, np.int64) for n, f in by_size.items()])
    seconds = np.concatenate([f.rows[:, :4] for f in by_size.values()])
    ways = np.concatenate([f.ways for f in by_size.values()])
    columns = problem.objective.columns(seconds, has_policy)
    host = np.concatenate([f.rows[:, _HOST] for f in by_size.values()]) * problem.one_host
    least = np.maximum(columns[:, :4], fronts.others(members, grains))
    best = front(np.column_stack([grains, least, columns[:, 4:], host]))
    return SetTable(members, grains[best], columns[best], ways[best], host[best])

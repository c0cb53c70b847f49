"""The exact search: every set partition of the units, every division of the cluster.

Branch and bound over partitions by a bound that ignores how grains are divided; within a
partition, sets are joined one by one and only states on the Pareto front of (grains, columns, host
memory where sets share it) live on. With equal results of equal units counted once, this covers
all of the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlframe_plugins.mappers.fronts import SetFronts, SetTable, least_table, set_table
from rlframe_plugins.mappers.incumbent import reduced
from rlframe_plugins.mappers.pareto import front
from rlframe_plugins.mappers.problem import Floats, Found, Ints, Problem

__all__ = ["Search", "partitions"]

Partition = tuple[tuple[int, ...], ...]


def partitions(count: int) -> Iterator[Partition]:
    """Every set partition of ``range(count)`` (restricted growth strings)."""

    def grow(sets: list[list[int]], unit: int) -> Iterator[Partition]:
        if unit == count:
            yield tuple(tuple(s) for s in sets)
            return
        for members in sets:
            members.append(unit)
            yield from grow(sets, unit + 1)
            members.pop()
        sets.append([unit])
        yield from grow(sets, unit + 1)
        sets.pop()

    yield from grow([], 0)


def _above(value: float) -> float:
    """A limit that the value itself is below, whatever order its summands are added in."""
    return value * (1 + 1e-9) + 1e-12


def _translated(found: Found, index: tuple[Ints, ...]) -> Found:
    """Ways of a reduced problem as ways of the whole one."""
    ways = tuple(
        tuple(int(index[unit][way]) for unit, way in zip(members, chosen, strict=True))
        for members, chosen in zip(found.sets, found.ways, strict=True)
    )
    return replace(found, ways=ways)


@dataclass(frozen=True)
class _States:
    """Some sets placed: grains ``used`` (k,), ``joined`` columns (k, c), shared bytes of the host.

    ``picks`` (k, sets) are rows of the sets' tables.
    """

    used: Ints
    joined: Floats
    host: Floats
    picks: Ints

    @classmethod
    def empty(cls, columns: int) -> _States:
        """Nothing placed yet."""
        nothing = np.zeros((1, columns))
        return cls(np.zeros(1, np.int64), nothing, np.zeros(1), np.zeros((1, 0), np.int64))


class Search:
    """Searches one problem; fronts and tables are kept between calls."""

    def __init__(self, problem: Problem, limit: float = np.inf) -> None:
        self.problem = problem
        self.fronts = SetFronts(problem, limit)
        self._tables: dict[tuple[int, ...], SetTable | None] = {}
        self.examined = 0
        """Partitions that had to be searched; the bound settled the others."""

    def table(self, members: Sequence[int]) -> SetTable | None:
        """The table of a set, found under the first units of the same classes."""
        representative = self._canonical(members)
        if representative not in self._tables:
            self._tables[representative] = set_table(self.fronts, representative)
        return self._tables[representative]

    def _canonical(self, members: Sequence[int]) -> tuple[int, ...]:
        """Lowest units of the same classes, policy and rollout in front."""
        twins, seen, result = self.problem.twins, dict[int, int](), list[int]()
        for unit in members:
            kind = twins[unit]
            peers = [u for u in range(len(twins)) if twins[u] == kind]
            result.append(peers[seen.get(kind, 0)])
            seen[kind] = seen.get(kind, 0) + 1
        pair = self.problem.pair if self.problem.has_pair(result) else None
        return tuple(sorted(result, key=lambda u: (pair is None or u not in pair, u)))

    def run(self, plans: int = 1) -> list[Found]:
        """The best placement of each of the ``plans`` best partitions, best first.

        A placement of a reduced problem gives the first limit; where more plans are wanted the
        limit is raised until there are enough.
        """
        first = Search(reduced(self.problem)[0])
        first.restart(first.simple_limit())
        known = first._run(1)
        return self._widen(plans, _above(known[0].value) if known else np.inf)

    def _widen(self, plans: int, limit: float) -> list[Found]:
        for factor in (1.0, 1.1, 1.3, 2.0, np.inf) if plans > 1 else (1.0,):
            self.restart(limit * factor)
            best = self._run(plans)
            if len(best) == plans or not limit < np.inf:
                break
        return best

    def alternatives(self, plans: int) -> list[Found]:
        """Good placements of the best partitions in a fraction of the time, not proven the best.

        They are the exact solutions of the reduced problem.
        """
        problem, index = reduced(self.problem)
        first = Search(problem)
        found = first._widen(plans, first.simple_limit())
        return [_translated(f, index) for f in found]

    def restart(self, limit: float) -> None:
        """Forget everything and look only for what is below ``limit`` seconds."""
        self.fronts, self._tables = SetFronts(self.problem, limit), {}

    def simple_limit(self) -> float:
        """A limit from three simple partitions: all together, all apart, the pair and the rest."""
        units = tuple(range(len(self.problem.names)))
        pair = self.problem.pair or units[:1]
        rest = tuple(u for u in units if u not in pair)
        simple = ((units,), tuple((u,) for u in units), (pair, *((rest,) if rest else ())))
        found = [self._settle(p, np.inf) for p in simple if self.problem.allows(p)]
        return min((_above(f.value) for f in found if f is not None), default=np.inf)

    def _run(self, plans: int) -> list[Found]:
        best: list[Found] = []
        limit = self.fronts.limit
        for bound, partition in self._bounded():
            if bound >= limit:
                break
            found = self._settle(partition, limit)
            if found is not None:
                best = sorted([*best, found], key=lambda f: f.value)[:plans]
                limit = min(limit, best[-1].value) if len(best) == plans else limit
        return best

    def _settle(self, partition: Partition, limit: float) -> Found | None:
        """The best placement below ``limit`` under a partition, sets built only while needed."""
        self.examined += 1
        tables: list[SetTable] = []
        for members in partition:
            table = self.table(members)
            if table is None:
                return None
            tables.append(table)
        return self._divide(partition, tables, limit)

    def best_of(self, partition: Sequence[Sequence[int]], exact: bool = True) -> Found | None:
        """The best placement under a given partition; None where none fits.

        Without ``exact`` it is that of the reduced problem where this has one.
        """
        sets = tuple(tuple(members) for members in partition)
        problem, index = reduced(self.problem)
        first = Search(problem)._settle(sets, np.inf)
        if first is not None and not exact:
            return _translated(first, index)
        limit = np.inf if first is None else _above(first.value)
        return Search(self.problem, limit)._settle(sets, limit)

    def _bounded(self) -> list[tuple[float, Partition]]:
        """Distinct partitions that may be below the limit, in rising order of a lower bound.

        The bound divides the grains as the search does, but takes each unit's least seconds.
        """
        seen, result = set(), []
        least: dict[tuple[int, ...], SetTable | None] = {}
        for partition in partitions(len(self.problem.names)):
            form = tuple(sorted(tuple(self.problem.twins[u] for u in m) for m in partition))
            if form in seen or not self.problem.allows(partition):
                continue
            seen.add(form)
            tables = []
            for members in map(self._canonical, partition):
                if members not in least:
                    least[members] = least_table(self.fronts, members)
                tables.append(least[members])
            known = [t for t in tables if t is not None]
            if len(known) == len(tables):
                bound = self._divide(partition, known, self.fronts.limit)
                if bound is not None:
                    result.append((bound.value, partition))
        return sorted(result, key=lambda entry: (entry[0], len(entry[1])))

    def _fits(self, tables: Sequence[SetTable]) -> bool:
        return sum(t.fewest for t in tables) <= self.problem.grains

    def _divide(
        self, partition: Partition, tables: Sequence[SetTable], limit: float
    ) -> Found | None:
        """Divide the grains over the sets of a partition; None when nothing is below ``limit``."""
        if not self._fits(tables):
            return None
        order = sorted(range(len(tables)), key=lambda i: len(tables[i].grains))
        states = _States.empty(tables[0].columns.shape[1])
        for step, index in enumerate(order):
            rest = [tables[i] for i in order[step + 1 :]]
            states = self._join(states, tables[index], rest, limit)
            if not len(states.used):
                return None
        value = float(self.problem.objective.value(states.joined)[0])
        rows = dict(zip(order, states.picks[0].tolist(), strict=True))
        return self._found(value, partition, tables, rows)

    def _join(
        self, states: _States, table: SetTable, rest: Sequence[SetTable], limit: float
    ) -> _States:
        """Add one set to every state; drop what cannot fit, cannot win, or is beaten.

        States are compared by what they come to at the least with the rest: seconds that another
        set will exceed in any case are no difference. Of the last set only the best one stays.
        """
        free = self.problem.grains - sum(t.fewest for t in rest)
        host = self.problem.host_capacity - sum(float(t.host.min()) for t in rest)
        fits = states.used[:, None] + table.grains[None] <= free
        i, j = np.nonzero(fits & (states.host[:, None] + table.host[None] <= host))
        total, away = states.used[i] + table.grains[j], states.host[i] + table.host[j]
        columns = np.maximum(states.joined[i], table.columns[j])
        optimistic = columns
        for other in rest:
            optimistic = np.maximum(optimistic, other.least_on(free + other.fewest - total))
        values = self.problem.objective.value(optimistic)
        alive = np.flatnonzero(values < limit)
        if rest:
            kept = front(np.column_stack([total[alive], optimistic[alive], away[alive]]))
        else:
            kept = np.lexsort((total[alive], values[alive]))[:1]
        best = alive[kept]
        picks = np.column_stack([states.picks[i[best]], j[best]])
        return _States(total[best], columns[best], away[best], picks)

    def _found(
        self,
        value: float,
        partition: Partition,
        tables: Sequence[SetTable],
        rows: dict[int, int],
    ) -> Found:
        """Translate rows of canonical sets into ways of the partition's own units."""
        grains, ways = [], []
        for index, members in enumerate(partition):
            table, row = tables[index], rows[index]
            grains.append(int(table.grains[row]))
            left = {
                unit: int(way) for unit, way in zip(table.members, table.ways[row], strict=True)
            }
            ways.append(tuple(self._take(left, unit) for unit in members))
        return Found(value, partition, tuple(grains), tuple(ways))

    def _take(self, left: dict[int, int], unit: int) -> int:
        """The way of a unit of the same class that is not taken yet."""
        twins = self.problem.twins
        match = next(u for u in left if twins[u] == twins[unit])
        return left.pop(match)

"""Plans: what the search found, with seconds by stage and bytes by part of every unit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlframe.calling.protocol import Mesh
from rlframe.interfaces.cluster import Placement, ResourcePool
from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.dataflow import ROLLOUT, STAGES, Unit
from rlframe_plugins.mappers.grid import SCHEMES, SCHEMES_OF, Way
from rlframe_plugins.mappers.problem import Found, Problem
from rlframe_plugins.mappers.search import Search
from rlframe_plugins.mappers.space import Space, Wishes, build_problem
from rlframe_plugins.mappers.workload import Workload

__all__ = ["Plan", "Planned", "PoolPlan", "UnitPlan", "make_plans"]

PARTS = ("compute", "memory", "link", "fixed", "bubble")


@dataclass(frozen=True)
class UnitPlan:
    """One role or the rollout on its pool.

    ``seconds`` by stage; ``parts`` by stage what they are made of; ``memory`` bytes of a device by
    part, ``resident`` and ``working`` among them; ``host`` the same of each host that it is on.
    """

    unit: Unit
    pool: str
    way: Way
    seconds: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]
    memory: Mapping[str, float]
    host: Mapping[str, float]

    @property
    def name(self) -> str:
        """Role, or "rollout"."""
        return self.unit.name

    @property
    def mesh(self) -> Mesh:
        """Parallel sizes."""
        return Mesh(dp=self.way.d, pp=self.way.p, tp=self.way.t)

    @property
    def strategy(self) -> str:
        """Name of the strategy that shards like this; whole weights of a frozen role: ddp."""
        if self.unit.generates:
            return "rollout"
        if self.way.copies > 1:
            return "fsdp"
        scheme = SCHEMES[self.way.scheme]
        able = [name for name in self.unit.strategies if scheme in SCHEMES_OF[name]]
        other = "deepspeed" if self.unit.strategies == ("deepspeed",) else "ddp"
        return able[0] if able else other


@dataclass(frozen=True)
class PoolPlan:
    """Devices that some units share; ``used`` bytes of a device at its fullest moment.

    ``host`` bytes of each of its hosts.
    """

    pool: ResourcePool
    members: tuple[str, ...]
    seconds: Mapping[str, float]
    used: float
    host: float


@dataclass(frozen=True)
class Plan:
    """A placement with its price: ``seconds`` a step, ``stages`` the seconds of each stage.

    ``exact`` says that the search proved it the best one of its space.
    """

    seconds: float
    stages: Mapping[str, float]
    pools: tuple[PoolPlan, ...]
    units: tuple[UnitPlan, ...]
    hardware: Hardware
    workload: Workload
    staleness: int | None
    exact: bool

    @property
    def tokens_per_second(self) -> float:
        """Prompt and response tokens of a step over its seconds."""
        return self.workload.tokens / self.seconds

    @property
    def capacity(self) -> float:
        """Bytes of a device that the models may take."""
        return self.hardware.capacity

    @property
    def host_capacity(self) -> float:
        """Bytes of a host that the models may take; on one node all pools share them."""
        return self.hardware.host_capacity

    def unit(self, name: str) -> UnitPlan:
        """The plan of a role or of the rollout."""
        return next(u for u in self.units if u.name == name)

    def placement(self) -> Placement:
        """What a cluster starts."""
        return Placement(
            {p.pool.name: p.pool for p in self.pools},
            {u.name: u.pool for u in self.units},
            {u.name: u.mesh for u in self.units},
        )

    def sets(self) -> tuple[tuple[str, ...], ...]:
        """Which units share devices."""
        return tuple(p.members for p in self.pools)


@dataclass(frozen=True)
class Planned:
    """All that a search gave: plans, best first (none: nothing fits), and what it took."""

    plans: tuple[Plan, ...]
    problem: Problem
    spaces: tuple[Space, ...]
    hardware: Hardware
    workload: Workload
    wishes: Wishes
    search_s: float

    def plan_of(self, found: Found, exact: bool = False) -> Plan:
        """A found placement with its prices."""
        return _plan(self, found, exact)


def make_plans(
    units: Sequence[Unit],
    hardware: Hardware,
    work: Workload,
    wishes: Wishes | None = None,
    plans: int = 3,
) -> Planned:
    """Search the best placement and good ones under other partitions.

    Raises ``ConfigError`` when sizes do not divide; when nothing fits, there are no plans.
    """
    started = time.perf_counter()
    wishes = wishes or Wishes()
    problem, spaces = build_problem(units, hardware, work, wishes)
    search = Search(problem)
    best = search.run()
    others = search.alternatives(plans) if plans > 1 and best else []
    taken = time.perf_counter() - started
    planned = Planned((), problem, spaces, hardware, work, wishes, taken)
    made = [planned.plan_of(found, exact=True) for found in best]
    known = {frozenset(map(frozenset, p.sets())) for p in made}
    for found in others:
        plan = planned.plan_of(found)
        if frozenset(map(frozenset, plan.sets())) not in known and len(made) < plans:
            made.append(plan)
    return Planned(tuple(made), problem, spaces, hardware, work, wishes, taken)


def _plan(planned: Planned, found: Found, exact: bool) -> Plan:
    names = _pool_names([[planned.problem.names[u] for u in members] for members in found.sets])
    pools, units = [], []
    for name, members, grains, ways in zip(
        names, found.sets, found.grains, found.ways, strict=True
    ):
        publish = _publish_seconds(planned.problem, members, ways)
        mine = [
            _unit_plan(planned.spaces[u], name, way, publish.get(u, 0.0))
            for u, way in zip(members, ways, strict=True)
        ]
        units += mine
        pools.append(_pool_plan(planned, name, grains, members, ways, mine))
    stages = {s: max(p.seconds[s] for p in pools) for s in STAGES}
    order = {name: i for i, name in enumerate(planned.problem.names)}
    return Plan(
        found.value,
        stages,
        tuple(pools),
        tuple(sorted(units, key=lambda u: order[u.name])),
        planned.hardware,
        planned.workload,
        planned.problem.objective.staleness,
        exact,
    )


def _pool_names(sets: Sequence[Sequence[str]]) -> list[str]:
    """The policy's is "train"; a pool of one unit has its name; others that of their first."""
    names = []
    for index, members in enumerate(sets):
        first = members[0] if members[0] != ROLLOUT or len(members) == 1 else members[1]
        names.append("train" if index == 0 else first)
    return names


def _publish_seconds(
    problem: Problem, members: Sequence[int], ways: Sequence[int]
) -> dict[int, float]:
    """Seconds of publishing that fall on the members of a set; the pair's on the policy."""
    chosen = dict(zip(members, ways, strict=True))
    if problem.pair is None:
        return {}
    policy, rollout = problem.pair
    if problem.has_pair(members) and problem.couple is not None:
        seconds, _ = problem.couple(np.array([chosen[policy]]), np.array([chosen[rollout]]))
        return {policy: float(seconds[0])}
    return {u: float(problem.choices[u].seconds[chosen[u], 3]) for u in problem.pair if u in chosen}


def _unit_plan(space: Space, pool: str, index: int, publish: float) -> UnitPlan:
    seconds = {stage: float(cost.seconds[index]) for stage, cost in space.costs.items()}
    parts = {
        stage: {p: float(getattr(cost, p)[index]) for p in PARTS}
        for stage, cost in space.costs.items()
    }
    if publish:
        seconds["publish"] = publish
        parts["publish"] = dict.fromkeys(PARTS, 0.0) | {"link": publish}
    memory = {name: float(values[index]) for name, values in space.memory.items()}
    host = {name: float(values[index]) for name, values in space.host.items() if values[index]}
    return UnitPlan(space.unit, pool, space.way(index), seconds, parts, memory, host)


def _pool_plan(
    planned: Planned,
    name: str,
    grains: int,
    members: Sequence[int],
    ways: Sequence[int],
    units: Sequence[UnitPlan],
) -> PoolPlan:
    hardware, problem = planned.hardware, planned.problem
    whole = hardware.nodes > 1
    pool = ResourcePool(name, grains if whole else 1, hardware.devices if whole else grains)
    resident = sum(u.memory["resident"] for u in units)
    working = max(u.memory["working"] - _saved(problem, members, ways, u) for u in units)
    seconds = {s: sum(u.seconds.get(s, 0.0) for u in units) for s in STAGES}
    host = sum(sum(u.host.values()) for u in units)
    return PoolPlan(pool, tuple(u.name for u in units), seconds, resident + working, host)


def _saved(problem: Problem, members: Sequence[int], ways: Sequence[int], unit: UnitPlan) -> float:
    """Bytes that the rollout shares with the policy's storage."""
    if unit.name != ROLLOUT or not problem.has_pair(members) or problem.couple is None:
        return 0.0
    assert problem.pair is not None
    chosen = dict(zip(members, ways, strict=True))
    policy, rollout = (np.array([chosen[u]]) for u in problem.pair)
    return float(problem.couple(policy, rollout)[1][0])

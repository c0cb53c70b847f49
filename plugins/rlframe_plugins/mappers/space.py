"""From units, workload and hardware to the arrays that the search takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlframe.errors import ConfigError
from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.collectives import to_host
from rlframe_plugins.mappers.dataflow import ROLLOUT, STAGES, Unit
from rlframe_plugins.mappers.grid import Grid, Way, generation_grid, model_grid
from rlframe_plugins.mappers.layers import Cost
from rlframe_plugins.mappers.memory import (
    generation_memory,
    host_memory,
    inference_memory,
    parameters_held,
    passing_memory,
    states,
    training_memory,
)
from rlframe_plugins.mappers.problem import Choices, Floats, Ints, Objective, Problem
from rlframe_plugins.mappers.publish import (
    receive_seconds,
    same_layout,
    send_seconds,
    transition_seconds,
)
from rlframe_plugins.mappers.simulate_generate import simulate_generate
from rlframe_plugins.mappers.simulate_infer import simulate_infer
from rlframe_plugins.mappers.simulate_train import simulate_train
from rlframe_plugins.mappers.workload import Workload

__all__ = ["Space", "Wishes", "build_problem", "pool_sizes"]


@dataclass(frozen=True)
class Wishes:
    """What the user fixes: ``staleness`` of an overlapping scheduler, sets, pool sizes."""

    staleness: int | None = None
    together: tuple[frozenset[str], ...] = ()
    pools: tuple[int, ...] = ()
    """Pool sizes in grains that may be used; empty takes every one."""


@dataclass(frozen=True)
class Space:
    """One unit's ways with what simulating them gave."""

    unit: Unit
    grid: Grid
    costs: Mapping[str, Cost]
    """By stage."""
    memory: Mapping[str, Floats]
    host: Mapping[str, Floats]
    """Bytes of each host by part."""

    @classmethod
    def of(cls, unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Space:
        """Simulate every way of the grid."""
        costs: dict[str, Cost] = {}
        if unit.generates:
            context = work.prompt_tokens + work.responses.mean
            costs["collect"] = simulate_generate(unit, grid, hardware, work)
            memory = generation_memory(unit.shape, grid, hardware, context)
            away = passing_memory(unit.shape, grid, hardware) if unit.copies else {}
            return cls(unit, grid, costs, memory, away)
        if unit.infers:
            costs["prepare"] = simulate_infer(unit, grid, hardware, work)
        if unit.trained:
            costs["learn"] = simulate_train(unit, grid, hardware, work)
            memory = training_memory(unit.shape, grid, hardware, work.sequence, work.attended)
        else:
            memory = inference_memory(unit.shape, grid, hardware, work.sequence)
        away = host_memory(unit.shape, grid, hardware, unit.trained)
        return cls(unit, grid, costs, memory, away)

    def choices(self, publish: Floats) -> Choices:
        """What the search takes; ``publish`` is the unit's share in sending weights elsewhere."""
        grid, stages = self.grid, []
        for stage in STAGES[:3]:
            cost = self.costs[stage].seconds if stage in self.costs else np.zeros(len(grid))
            stages.append(cost)
        code = ((grid.t * 4096 + grid.p) * 8 + grid.scheme) * 2 + grid.offload
        code = code * 2**20 + grid.copies
        return Choices(
            grains=grid.grains.astype(np.int64),
            seconds=np.column_stack([*stages, publish]),
            resident=self.memory["resident"],
            working=self.memory["working"],
            key=code.astype(np.int64),
            host=np.sum([np.zeros(len(grid)), *self.host.values()], axis=0),
        )

    def way(self, index: int) -> Way:
        """One way."""
        return self.grid.way(index)


def pool_sizes(hardware: Hardware, allowed: Sequence[int] = ()) -> dict[int, int]:
    """Grains to devices of every pool size: whole nodes, or devices where there is one node."""
    grain = hardware.devices if hardware.nodes > 1 else 1
    total = hardware.size // grain
    sizes = range(1, total + 1) if not allowed else [n for n in allowed if n <= total]
    return {n: n * grain for n in sizes}


def _grid(unit: Unit, hardware: Hardware, work: Workload, sizes: dict[int, int]) -> Grid:
    make = generation_grid if unit.generates else model_grid
    return make(unit, hardware, work, sizes)


def build_problem(
    units: Sequence[Unit], hardware: Hardware, work: Workload, wishes: Wishes | None = None
) -> tuple[Problem, tuple[Space, ...]]:
    """The search problem of a dataflow on a cluster, and the space of each unit.

    Raises ``ConfigError`` when a unit has no way at all (sizes that do not divide).
    """
    wishes = wishes or Wishes()
    sizes = pool_sizes(hardware, wishes.pools)
    cache: dict[tuple[object, ...], Space] = {}
    for unit in units:
        if unit.twin not in cache:
            cache[unit.twin] = Space.of(unit, _grid(unit, hardware, work, sizes), hardware, work)
        if not len(cache[unit.twin].grid):
            raise ConfigError(
                f"role '{unit.name}' has no parallel sizes on pools of {sorted(sizes.values())} "
                f"devices that divide {unit.shape.layers} layers, {unit.shape.heads} heads and "
                f"{unit.minibatch_rows} rows a mini-batch: change the mini-batch or the cluster"
            )
    spaces = tuple(replace(cache[unit.twin], unit=unit) for unit in units)
    return _problem(spaces, hardware, max(sizes), wishes), spaces


def _problem(spaces: tuple[Space, ...], hardware: Hardware, grains: int, wishes: Wishes) -> Problem:
    names = tuple(space.unit.name for space in spaces)
    rollout = names.index(ROLLOUT) if ROLLOUT in names else None
    kinds = list(dict.fromkeys(space.unit.twin for space in spaces))
    twins = [kinds.index(space.unit.twin) for space in spaces]
    groups = [frozenset(n for n in group if n in names) for group in wishes.together]
    for unit in (names.index(n) for group in groups for n in group):
        twins[unit] = len(kinds) + unit
    if rollout is not None:
        twins[0], twins[rollout] = -1, -2
    overlaps = wishes.staleness is not None and rollout is not None
    return Problem(
        names=names,
        grains=grains,
        capacity=hardware.capacity,
        host_capacity=hardware.host_capacity,
        one_host=hardware.nodes == 1,
        choices=tuple(
            space.choices(_publish(space, i, rollout, hardware)) for i, space in enumerate(spaces)
        ),
        twins=tuple(twins),
        pair=None if rollout is None else (0, rollout),
        couple=None if rollout is None else _Coupling(spaces[0], spaces[rollout], hardware),
        objective=Objective(wishes.staleness if overlaps else None),
        alone=frozenset({rollout}) if overlaps and rollout is not None else frozenset(),
        together=tuple(frozenset(names.index(n) for n in group) for group in groups),
    )


def _publish(space: Space, index: int, rollout: int | None, hardware: Hardware) -> Floats:
    """A unit's share of bringing weights from one pool to another."""
    if rollout is not None and index == 0:
        return send_seconds(space.unit.shape, space.grid, hardware)
    if index == rollout:
        return receive_seconds(space.unit.shape, space.grid, hardware)
    return np.zeros(len(space.grid))


@dataclass(frozen=True)
class _Coupling:
    """Policy and rollout on the same devices: transition seconds, and bytes that are shared."""

    policy: Space
    rollout: Space
    hardware: Hardware

    def __call__(self, ways: Ints, others: Ints) -> tuple[Floats, Floats]:
        source, target = self._take(self.policy.grid, ways), self._take(self.rollout.grid, others)
        shape, width = self.policy.unit.shape, self.hardware.weight_bytes
        seconds = transition_seconds(shape, source, target, self.hardware)
        weights = states(shape, source, width)["weights"]
        fetched = np.where(source.offload == 1, to_host(self.hardware, weights), 0.0)
        own = float(self.rollout.unit.copies)
        shared = same_layout(source, target) * (1 - source.offload) * (1 - own)
        saved = width * parameters_held(shape, target.t, target.p) * shared
        return seconds + fetched, saved

    @staticmethod
    def _take(grid: Grid, index: Ints) -> Grid:
        return Grid(*(column[index] for column in vars(grid).values()))

"""Why a plan is the best one: what binds, where others lose, what does not fit and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlframe.errors import ConfigError
from rlframe_plugins.mappers.catalogue import GIB, Catalogue, Hardware, hardware_of
from rlframe_plugins.mappers.dataflow import STAGES
from rlframe_plugins.mappers.planner import PARTS, Plan, Planned
from rlframe_plugins.mappers.problem import Choices, Problem
from rlframe_plugins.mappers.search import Search
from rlframe_plugins.mappers.space import build_problem

__all__ = ["Shortage", "binding", "memory_price", "shortage", "why_it_loses"]

_WORDS = {
    "compute": "arithmetic",
    "memory": "device-memory bandwidth",
    "link": "links",
    "fixed": "launches and fixed overheads",
    "bubble": "idle pipeline stages",
}
_GB = 1e9
_MORE_MEMORY = (1.25, 1.5, 2.0)
_MOST = 1024.0


def binding(plan: Plan) -> dict[str, tuple[str, str, float]]:
    """By stage: the pool that it waits for, what most of its seconds are, and their share."""
    result = {}
    for stage in STAGES:
        pool = max(plan.pools, key=lambda p: p.seconds[stage])
        total = pool.seconds[stage]
        if total <= 0:
            continue
        mine = [u for u in plan.units if u.name in pool.members and stage in u.parts]
        sums = {part: sum(u.parts[stage][part] for u in mine) for part in PARTS}
        most = max(sums, key=lambda part: sums[part])
        result[stage] = (pool.pool.name, _WORDS[most], sums[most] / total)
    return result


def memory_price(planned: Planned) -> str | None:
    """What more memory a device would buy, and what more a host; None where neither binds.

    Looks for the least of a quarter, half or all of what there is on top that makes a step more
    than 1 % faster (in the reduced problem).
    """
    if not planned.plans:
        return None
    told = [_price(planned, "capacity", "device")]
    if any(pool.host for plan in planned.plans for pool in plan.pools):
        told.append(_price(planned, "host_capacity", "host"))
    return "; ".join(text for text in told if text) or None


def _price(planned: Planned, name: str, words: str) -> str:
    """What more of one capacity would buy; empty where it does not bind."""
    best = planned.plans[0]
    for factor in _MORE_MEMORY:
        found = Search(_with(planned.problem, name, factor)).alternatives(1)
        if found and found[0].value < 0.99 * best.seconds:
            plan = planned.plan_of(found[0])
            used = [p.used if name == "capacity" else p.host for p in plan.pools]
            shared = name == "host_capacity" and planned.problem.one_host
            missing = (sum(used) if shared else max(used)) - getattr(best, name)
            return (
                f"{words} memory binds: with {missing / _GB:.1f} GB more a {words} a step would "
                f"take {plan.seconds:.1f} s instead of {best.seconds:.1f} s"
            )
    return ""


def _with(problem: Problem, name: str, factor: float) -> Problem:
    """The problem with another capacity, ``name`` of the device or its host memory."""
    return replace(problem, **{name: getattr(problem, name) * factor})


def why_it_loses(best: Plan, other: Plan) -> str:
    """One line: where the other plan's seconds go, and the stage that makes the difference."""
    more = {s: other.stages[s] - best.stages[s] for s in STAGES}
    worst = max(more, key=lambda s: more[s])
    saved = min(more, key=lambda s: more[s])
    slower = (other.seconds / best.seconds - 1) * 100
    text = f"{slower:.1f} % slower: {worst} takes {more[worst]:+.1f} s"
    name, what, share = binding(other).get(worst, ("", "", 0.0))
    if name:
        text += f" (pool {name}, {share:.0%} {what})"
    if more[saved] < -0.05:
        text += f", {saved} only {more[saved]:+.1f} s"
    if not other.exact:
        text += "; not proven the best of its kind"
    return text


@dataclass(frozen=True)
class Shortage:
    """Why nothing fits: bytes that a device misses, or a host, and what would help.

    ``unit`` needs ``needs`` bytes of a device with nothing else on it, the most of all. What is
    ``missing`` holds with the host memory that there is, what is ``host_missing`` with the
    device's own (None: no host memory would do).
    """

    unit: str
    needs: float
    capacity: float
    missing: float
    host_capacity: float
    host_missing: float | None
    remedies: tuple[str, ...]

    def __str__(self) -> str:
        text = "no plan fits: "
        if self.needs > self.capacity:
            text += f"'{self.unit}' needs {self.needs / _GB:.1f} GB a device at the least; "
        text += (
            f"a device misses {self.missing / _GB:.1f} GB beside its {self.capacity / _GB:.1f} GB"
        )
        if self.host_missing is not None:
            text += (
                f", or a host {self.host_missing / _GB:.1f} GB beside its "
                f"{self.host_capacity / _GB:.1f} GB"
            )
        return f"{text}. It would fit {'; or '.join(self.remedies)}." if self.remedies else text


def shortage(planned: Planned, catalogue: Catalogue) -> Shortage:
    """What is missing where nothing fits, as the reduced problem says."""
    problem = planned.problem
    needs = [_least_need(choices, problem) for choices in problem.choices]
    unit = int(np.argmax(needs))
    missing = _missing(problem, "capacity")
    host_missing = _missing(problem, "host_capacity")
    return Shortage(
        unit=problem.names[unit],
        needs=needs[unit],
        capacity=problem.capacity,
        missing=missing if missing is not None else needs[unit] - problem.capacity,
        host_capacity=problem.host_capacity,
        host_missing=host_missing,
        remedies=(
            *_more_nodes(planned),
            *_larger_devices(planned, catalogue),
            *_more_host(planned.hardware, host_missing),
        ),
    )


def _more_host(hardware: Hardware, missing: float | None) -> Sequence[str]:
    """GiB of host memory a node with which a plan fits."""
    if missing is None:
        return []
    whole = (hardware.host_capacity + missing) / hardware.constants.host_memory_share
    return [f"with {math.ceil(whole / GIB)} GiB of host memory a node"]


def _least_need(choices: Choices, problem: Problem) -> float:
    """Bytes of a device at the least, host memory being what it is."""
    need = choices.resident + choices.working
    able = choices.host <= problem.host_capacity
    return float(need[able].min() if able.any() else need.min())


def _missing(problem: Problem, name: str) -> float | None:
    """Bytes more of a capacity with which something fits, to a hundredth; None if none would do."""

    def fits(factor: float) -> bool:
        return bool(Search(_with(problem, name, factor)).alternatives(1))

    high = 2.0
    while not fits(high):
        high *= 2
        if high > _MOST:
            return None
    low = high / 2
    while high - low > low / 100:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(getattr(problem, name)) * (high - 1)


def _fits(planned: Planned, hardware: Hardware) -> bool:
    units = [space.unit for space in planned.spaces]
    try:
        problem, _ = build_problem(units, hardware, planned.workload, planned.wishes)
    except ConfigError:
        return False
    return bool(Search(problem).alternatives(1))


def _more_nodes(planned: Planned) -> Sequence[str]:
    for factor in (2, 4, 8, 16):
        larger = planned.hardware.of(planned.hardware.nodes * factor)
        if _fits(planned, larger):
            return [f"on {larger.nodes} nodes of {larger.devices} devices"]
    return []


def _larger_devices(planned: Planned, catalogue: Catalogue) -> Sequence[str]:
    hardware = planned.hardware
    larger = sorted(
        (device.memory_gib, name)
        for name, device in catalogue.devices.items()
        if device.memory_gib * GIB > hardware.memory and name != hardware.name
    )
    for _, name in larger:
        if _fits(planned, hardware_of(catalogue, hardware.nodes, hardware.devices, name)):
            return [f"on as many {name}"]
    return []

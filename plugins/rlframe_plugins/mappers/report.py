"""Plans as text, and as JSON values."""

from __future__ import annotations

from typing import Any

from rlframe_plugins.mappers.dataflow import STAGES
from rlframe_plugins.mappers.explain import binding, memory_price, why_it_loses
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES
from rlframe_plugins.mappers.planner import Plan, Planned, PoolPlan, UnitPlan

__all__ = [
    "memory_text",
    "plan_dict",
    "plan_text",
    "planned_dict",
    "planned_text",
    "summary",
    "used_text",
]

_GB = 1e9


def summary(plan: Plan) -> str:
    """One line: which units share which devices."""
    pools = (f"{{{', '.join(p.members)}}} on {p.pool.nodes} x {p.pool.devices}" for p in plan.pools)
    return " | ".join(pools)


def _way_text(unit: UnitPlan) -> str:
    way = unit.way
    text = f"t{way.t} p{way.p} d{way.d}"
    if unit.unit.generates:
        return f"{text}, {way.micro} sequences a replica"
    text += f" {unit.strategy}"
    if unit.strategy == "deepspeed":
        text += f" ({SCHEMES[way.scheme].replace('fsdp', 'zero3')})"
    if way.copies > 1:
        text += f" ({way.copies} replicas)"
    text += f", micro-batch {way.micro}"
    if unit.unit.trained:
        text += f", recompute {RECOMPUTE[way.recompute]}"
    return text + (", states in host memory" if way.offload else "")


def memory_text(unit: UnitPlan) -> str:
    """GB of a device by part, and of each host where something lies there."""
    parts = {k: v for k, v in unit.memory.items() if k not in ("resident", "working") and v > 1e6}
    text = ", ".join(f"{k} {v / _GB:.1f}" for k, v in parts.items())
    away = ", ".join(f"{k} {v / _GB:.1f}" for k, v in unit.host.items())
    return f"{text}; GB a host: {away}" if away else text


def used_text(pool: PoolPlan, plan: Plan) -> str:
    """What a pool takes of each device and of each host at most."""
    text = f"at most {pool.used / _GB:.1f} of {plan.capacity / _GB:.1f} GB a device"
    if pool.host:
        text += f", {pool.host / _GB:.1f} of {plan.host_capacity / _GB:.1f} GB a host"
    return text


def plan_text(plan: Plan) -> str:
    """A plan on about a dozen lines."""
    lines = [
        f"{plan.seconds:.2f} s a step, {plan.tokens_per_second:,.0f} tokens/s: {summary(plan)}"
    ]
    what = binding(plan)
    for stage in STAGES:
        if stage in what:
            where, words, share = what[stage]
            lines.append(
                f"  {stage:<8}{plan.stages[stage]:>9.2f} s  waits for {where}: {share:.0%} {words}"
            )
    for pool in plan.pools:
        lines.append(
            f"  pool {pool.pool.name}: {pool.pool.nodes} x {pool.pool.devices}, "
            f"{used_text(pool, plan)}"
        )
        for unit in (u for u in plan.units if u.pool == pool.pool.name):
            seconds = ", ".join(f"{s} {v:.2f} s" for s, v in unit.seconds.items())
            lines.append(f"    {unit.name}: {_way_text(unit)}; {seconds}")
            lines.append(f"      GB a device: {memory_text(unit)}")
    return "\n".join(lines)


def planned_text(planned: Planned) -> str:
    """The best plan in full, then why each other one loses."""
    best, *others = planned.plans
    lines = [plan_text(best)]
    price = memory_price(planned)
    if price:
        lines.append(f"  {price}")
    for other in others:
        lines.append(f"- {summary(other)}: {why_it_loses(best, other)}")
    lines.append(f"searched in {planned.search_s:.2f} s")
    return "\n".join(lines)


def _unit_dict(unit: UnitPlan) -> dict[str, Any]:
    way = unit.way
    return {
        "name": unit.name,
        "pool": unit.pool,
        "tp": way.t,
        "pp": way.p,
        "dp": way.d,
        "strategy": unit.strategy,
        "sharding": SCHEMES[way.scheme],
        "recompute": RECOMPUTE[way.recompute] if unit.unit.trained else None,
        "offload": bool(way.offload),
        "micro_batch": None if unit.unit.generates else way.micro,
        "concurrent_sequences": way.micro if unit.unit.generates else None,
        "seconds": dict(unit.seconds),
        "parts_s": {stage: dict(parts) for stage, parts in unit.parts.items()},
        "memory_bytes": dict(unit.memory),
        "host_bytes": dict(unit.host),
        "parameters": unit.unit.shape.parameters,
    }


def plan_dict(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values; seconds and bytes."""
    return {
        "step_s": plan.seconds,
        "tokens_per_s": plan.tokens_per_second,
        "exact": plan.exact,
        "stages_s": dict(plan.stages),
        "binds": {
            stage: {"pool": pool, "what": what, "share": share}
            for stage, (pool, what, share) in binding(plan).items()
        },
        "pools": [
            {
                "name": p.pool.name,
                "nodes": p.pool.nodes,
                "devices": p.pool.devices,
                "members": list(p.members),
                "stages_s": dict(p.seconds),
                "memory_bytes": p.used,
                "capacity_bytes": plan.capacity,
                "host_bytes": p.host,
                "host_capacity_bytes": plan.host_capacity,
            }
            for p in plan.pools
        ],
        "units": [_unit_dict(u) for u in plan.units],
    }


def planned_dict(planned: Planned) -> dict[str, Any]:
    """The whole answer as JSON values: ``search_s``, ``plans`` best first, why others lose."""
    best, *others = planned.plans
    plans = [plan_dict(plan) for plan in planned.plans]
    for values, other in zip(plans[1:], others, strict=True):
        values["loses"] = why_it_loses(best, other)
    hardware = planned.hardware
    return {
        "search_s": planned.search_s,
        "hardware": {
            "nodes": hardware.nodes,
            "devices": hardware.devices,
            "kind": hardware.name,
        },
        "memory_price": memory_price(planned),
        "plans": plans,
    }

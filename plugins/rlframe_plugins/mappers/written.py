"""A plan as options of a run: the YAML that ``rlframe fit --config`` takes, or a config itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlframe.config import Config, PoolConfig
from rlframe.roles import roles_of
from rlframe_plugins.mappers.dataflow import ROLLOUT
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES
from rlframe_plugins.mappers.planner import Plan, UnitPlan
from rlframe_plugins.mappers.report import summary
from rlframe_plugins.mappers.runs import model_path
from rlframe_plugins.mappers.workload import Workload

__all__ = ["Asked", "algo_options", "fitted", "model_folders", "plan_yaml"]

_CHUNK = 32
"""Tokens of a block of key-value cache, to which what a sequence needs is rounded up."""


@dataclass(frozen=True)
class Asked:
    """What ``rlframe map`` was asked for beyond units and hardware, for the config that it writes.

    ``models`` are folders by role, "" that of all; ``algo_options`` what the method is set to.
    """

    algo: str = ""
    rollout: str = ""
    scheduler: str = "sync"
    models: Mapping[str, str] = field(default_factory=dict)
    algo_options: Mapping[str, Any] = field(default_factory=dict)


def model_folders(given: Mapping[str, str]) -> dict[str, str]:
    """Those models that are folders of this machine; known sizes by name have no weights."""
    folders = {}
    for role, model in given.items():
        path = Path(model).parent if model.endswith("config.json") else Path(model)
        if path.is_dir() or model.startswith("pkg:"):
            folders[role] = model if model.startswith("pkg:") else str(path)
    return folders


def algo_options(algo: str, work: Workload) -> dict[str, Any]:
    """The workload as far as the method's own options say it."""
    from rlframe.host.host import current_host
    from rlframe.host.resolve import resolve

    default = resolve(current_host(), "algorithm", algo).value().config
    sizes = {
        "samples_per_prompt": work.samples,
        "minibatch_prompts": work.minibatch_prompts,
        "epochs": work.epochs,
    }
    return {name: value for name, value in sizes.items() if hasattr(default, name)}


def _strategy_options(unit: UnitPlan) -> dict[str, Any]:
    """Sizes and sharding as the strategy calls them."""
    way, name = unit.way, unit.strategy
    if name == "fsdp":
        return {"tp": way.t, "replicas": way.copies, "cpu_offload": bool(way.offload)}
    if name == "deepspeed":
        stage = ("ddp", "zero1", "zero2", "fsdp").index(SCHEMES[way.scheme])
        away = bool(way.offload)
        return {"zero": stage, "offload_optimizer": away, "offload_params": away}
    if name == "megatron":
        options: dict[str, Any] = {"tp": way.t, "pp": way.p, "sequence_parallel": way.t > 1}
        if RECOMPUTE[way.recompute] != "none" and unit.unit.trained:
            options["recompute"] = RECOMPUTE[way.recompute]
        return options
    return {}


def _again(unit: UnitPlan) -> bool:
    """Whether a role makes activations again: layers, or with Megatron attention."""
    if not unit.unit.trained:
        return False
    kind = RECOMPUTE[unit.way.recompute]
    return kind == "full" or (kind == "selective" and unit.strategy == "megatron")


def _micro_tokens(unit: UnitPlan, plan: Plan) -> int:
    return max(math.ceil(unit.way.micro * plan.workload.sequence), 1)


def _role(unit: UnitPlan, plan: Plan, asked: Asked) -> dict[str, Any]:
    model: dict[str, Any] = {"gradient_checkpointing": _again(unit)}
    if unit.name in asked.models:
        model["path"] = asked.models[unit.name]
    return {
        "pool": unit.pool,
        "strategy": {"name": unit.strategy, **_strategy_options(unit)},
        "model": model,
        "optim": {"tokens_per_microbatch": _micro_tokens(unit, plan)},
    }


def _rollout_sizes(plan: Plan) -> dict[str, Any]:
    """What both engines that cut a model call by the same names."""
    way = plan.unit(ROLLOUT).way
    return {"tensor_parallel": way.t, "max_batch": way.micro}


def _rollout(plan: Plan, asked: Asked) -> dict[str, Any]:
    unit, work = plan.unit(ROLLOUT), plan.workload
    longest = math.ceil(work.responses.quantiles[-1])
    options = {"name": asked.rollout, "pool": unit.pool, "max_new_tokens": longest}
    options |= _rollout_sizes(plan)
    if asked.rollout == "torch":
        blocks = math.ceil((work.prompt_tokens + longest) / _CHUNK)
        options["max_kv_tokens"] = unit.way.micro * blocks * _CHUNK
    if asked.rollout == "vllm":
        share = (unit.memory["weights"] + unit.memory["kv_cache"]) / plan.hardware.memory
        options["gpu_memory_utilization"] = min(math.ceil(share * 100 + 3) / 100, 0.95)
    return options


def _checkpoint(plan: Plan) -> dict[str, Any]:
    """On the same devices the rollout's memory is the trainer's between its turns."""
    policy, rollout = plan.unit("policy"), plan.unit(ROLLOUT)
    if policy.pool != rollout.pool:
        return {"name": "transport"}
    alike = policy.mesh == rollout.mesh and policy.strategy != "fsdp" and not rollout.unit.copies
    return {"name": "hybrid", "after_generation": "cache" if alike else "release"}


def _cluster(plan: Plan) -> dict[str, Any]:
    hardware = plan.hardware
    if hardware.size == 1:
        return {"name": "inline"}
    device = "cpu" if hardware.name.startswith("cpu") else "cuda"
    where = {"address": "auto"} if hardware.nodes > 1 else {}
    return {"name": "ray", "device": device, **where}


def plan_yaml(plan: Plan, asked: Asked | None = None) -> str:
    """A config for ``rlframe fit --config``: pools, roles with their sizes, rollout, workload."""
    import yaml

    asked = asked or Asked()
    config: dict[str, Any] = {}
    if asked.algo:
        config["algo"] = {"name": asked.algo, **asked.algo_options}
    if "" in asked.models:
        config["model"] = {"path": asked.models[""]}
    config["data"] = {"prompts_per_step": plan.workload.prompts}
    if plan.workload.prompt_tokens:
        config["data"]["max_prompt_tokens"] = math.ceil(plan.workload.prompt_tokens)
    config["cluster"] = _cluster(plan)
    config["pools"] = {
        p.pool.name: {"nodes": p.pool.nodes, "devices": p.pool.devices} for p in plan.pools
    }
    config["mapper"] = {"name": "fixed"}
    config["roles"] = {u.name: _role(u, plan, asked) for u in plan.units if u.name != ROLLOUT}
    if any(u.name == ROLLOUT for u in plan.units):
        config["rollout"] = _rollout(plan, asked)
        config["checkpoint"] = _checkpoint(plan)
        ahead = {"staleness": plan.staleness} if asked.scheduler == "async" else {}
        config["scheduler"] = {"name": asked.scheduler, **ahead}
    head = f"# {plan.seconds:.2f} s a step: {summary(plan)}\n"
    return head + yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=96)


def fitted(config: Config, plan: Plan) -> Config:
    """The config of a run with the sizes that a plan found for its strategies and its rollout."""
    specs = {spec.name: spec for spec in roles_of(config)}
    roles = {}
    for unit in (u for u in plan.units if u.name != ROLLOUT):
        role = config.role(unit.name)
        options = replace(role.strategy.config, **_strategy_options(unit))
        path = model_path(config, specs[unit.name])
        roles[unit.name] = replace(
            role,
            pool=unit.pool,
            strategy=replace(role.strategy, config=options),
            model=replace(role.model, path=path, gradient_checkpointing=_again(unit)),
            optim=replace(role.optim, tokens_per_microbatch=_micro_tokens(unit, plan)),
        )
    rollout = config.rollout
    if any(u.name == ROLLOUT for u in plan.units):
        sizes = _rollout_sizes(plan) if hasattr(rollout.config, "tensor_parallel") else {}
        options = replace(rollout.config, pool=plan.unit(ROLLOUT).pool, **sizes)
        rollout = replace(rollout, config=options)
    pools = {p.pool.name: PoolConfig(p.pool.nodes, p.pool.devices) for p in plan.pools}
    roles = {**config.roles, **roles}
    return replace(config, pools=pools, roles=roles, rollout=rollout)

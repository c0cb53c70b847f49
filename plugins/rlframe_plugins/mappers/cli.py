"""``rlframe map``: the best placements of a method on a cluster, without starting anything."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlframe_plugins.mappers.catalogue import Hardware
    from rlframe_plugins.mappers.dataflow import Unit
    from rlframe_plugins.mappers.planner import Planned
    from rlframe_plugins.mappers.wellknown import Dataflow
    from rlframe_plugins.mappers.workload import Workload
    from rlframe_plugins.mappers.written import Asked

__all__ = ["add_map_command"]


def add_map_command(subcommands: Any) -> None:
    """Add ``rlframe map``; imports nothing heavy."""
    command = subcommands.add_parser("map", help="find the best placement on a cluster")
    add = command.add_argument
    add("--algo", default="ppo", help="a registered method, or ppo, grpo, remax, safe-rlhf")
    add("--model", metavar="CONFIG_OR_NAME", help="config.json, its folder, or a known name")
    add("--critic-model", metavar="CONFIG_OR_NAME", help="model of critics and scorers")
    add("--role-model", action="append", default=[], metavar="ROLE=MODEL", help="model of a role")
    add("--hardware", metavar="16x8:a100-80g[@ib-200]", help="nodes x devices a node : kind")
    add("--host-memory", type=float, default=0, metavar="GIB", help="GiB of host memory a node")
    add("--devices", metavar="FILE", help="further devices, networks and constants")
    add("--prompts", type=int, default=1024, help="prompts a step")
    add("--samples", type=int, default=0, help="responses a prompt; 0 takes the method's")
    add("--prompt-tokens", type=float, default=1024, help="tokens of a prompt on average")
    add("--response-tokens", default="1024", help="a length, or a distribution: uniform:128-2048")
    add("--minibatch-prompts", type=int, default=0, help="prompts an optimiser step; 0: all")
    add("--epochs", type=int, default=1, help="passes over a batch")
    add("--strategy", default="any", help="strategies to choose from, joined by commas, or any")
    add("--rollout", default="auto", help="torch, vllm, or any; auto: vllm on GPUs")
    add("--scheduler", default="sync", help="sync, one-step-off or async")
    add("--staleness", type=int, default=1, help="steps that an async scheduler runs ahead")
    add("--together", action="append", default=[], metavar="A+B", help="units that share devices")
    add("--plans", type=int, default=3, help="plans to show")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--yaml", action="store_true", help="the config for rlframe fit --config")
    form.add_argument("--html", metavar="FILE", nargs="?", const="-", help="as a page")
    add("--calibrate", action="store_true", help="measure this machine and write a catalogue")
    add("--run", metavar="RUN", dest="run_dir", help="calibrate by the timings of a run instead")
    add("--out", metavar="FILE", default="rlframe-devices.yaml", help="catalogue to write")
    command.set_defaults(run=run_map)


def run_map(arguments: argparse.Namespace) -> int:
    """Search, and print the answer in the form that was asked for. Raises ``ConfigError``."""
    if arguments.calibrate:
        from rlframe_plugins.mappers.calibrate import calibrate, calibrate_by_run

        if arguments.run_dir:
            text = calibrate_by_run(Path(arguments.run_dir), arguments.devices)
        else:
            text = calibrate()
        Path(arguments.out).write_text(text, encoding="utf-8")
        print(f"wrote {arguments.out}: use it with rlframe map --devices {arguments.out}")
        return 0
    return _show(arguments, _search(arguments))


def _show(arguments: argparse.Namespace, planned: Planned) -> int:
    from rlframe_plugins.mappers.report import planned_dict, planned_text

    if arguments.json:
        print(json.dumps(planned_dict(planned), indent=1))
    elif arguments.yaml:
        from rlframe_plugins.mappers.written import plan_yaml

        sys.stdout.write(plan_yaml(planned.plans[0], _asked(arguments, planned)))
    elif arguments.html:
        from rlframe_plugins.mappers.picture import page

        if arguments.html == "-":
            sys.stdout.write(page(planned))
        else:
            Path(arguments.html).write_text(page(planned), encoding="utf-8")
            print(f"wrote {arguments.html}")
    else:
        print(planned_text(planned))
    return 0


def _asked(arguments: argparse.Namespace, planned: Planned) -> Asked:
    """What the written config says besides the plan."""
    from rlframe_plugins.mappers.written import Asked, algo_options, model_folders

    given = {"": arguments.model, **dict(t.split("=", 1) for t in arguments.role_model)}
    if arguments.critic_model:
        heads = (u for u in planned.spaces if u.unit.shape.head == "scalar")
        given = {u.unit.name: arguments.critic_model for u in heads} | given
    return Asked(
        algo=arguments.algo,
        rollout=_engine(arguments, planned.hardware),
        scheduler=arguments.scheduler,
        models=model_folders(given),
        algo_options=algo_options(arguments.algo, planned.workload),
    )


def _engine(arguments: argparse.Namespace, hardware: Hardware) -> str:
    """The rollout engine that a plan is for; any is written as vLLM."""
    if arguments.rollout not in ("auto", "any"):
        return str(arguments.rollout)
    return "torch" if hardware.name.startswith("cpu") else "vllm"


def _search(arguments: argparse.Namespace) -> Planned:
    from rlframe.errors import ConfigError
    from rlframe_plugins.mappers.catalogue import load_catalogue, parse_hardware
    from rlframe_plugins.mappers.explain import shortage
    from rlframe_plugins.mappers.planner import make_plans
    from rlframe_plugins.mappers.runs import measured_together
    from rlframe_plugins.mappers.space import Wishes

    for name in ("model", "hardware"):
        if not getattr(arguments, name):
            raise ConfigError(f"rlframe map needs --{name}")
    if arguments.plans < 1 or arguments.staleness < 1:
        raise ConfigError("--plans and --staleness must be at least 1")
    if not 0 <= arguments.host_memory < float("inf"):
        raise ConfigError("--host-memory must be at least 0 GiB; 0 takes the catalogue's")
    catalogue = load_catalogue(arguments.devices)
    hardware = parse_hardware(arguments.hardware, catalogue).with_host(arguments.host_memory)
    flow = _dataflow(arguments.algo, [text.partition("=")[0] for text in arguments.role_model])
    work = _workload(arguments, flow)
    units = _units(arguments, flow, work, hardware)
    wishes = Wishes(
        staleness=None if arguments.scheduler == "sync" else arguments.staleness,
        together=(
            *(_group(text, units) for text in arguments.together),
            *measured_together(flow.roles),
        ),
    )
    planned = make_plans(units, hardware, work, wishes, arguments.plans)
    if not planned.plans:
        raise ConfigError(str(shortage(planned, catalogue)))
    return planned


def _group(text: str, units: tuple[Unit, ...]) -> frozenset[str]:
    from rlframe.errors import ConfigError, unknown_name

    group, names = frozenset(text.split("+")), [unit.name for unit in units]
    for name in group:
        if name not in names:
            raise ConfigError(f"--together {text}: {unknown_name('role', name, names)}")
    return group


def _dataflow(algo: str, named: Sequence[str] = ()) -> Dataflow:
    """Roles and samples of a registered method (or file.py:Class), else of a well-known one.

    ``named`` are optional roles that take part, such as a reward model.
    """
    from rlframe.host.host import current_host
    from rlframe.host.resolve import resolve
    from rlframe.requests import Row
    from rlframe.roles import known_roles
    from rlframe_plugins.mappers.wellknown import WELL_KNOWN, Dataflow

    host = current_host()
    if algo in WELL_KNOWN and algo not in host.components("algorithm"):
        return WELL_KNOWN[algo]
    algorithm = resolve(host, "algorithm", algo).value()
    roles = tuple(r for r in known_roles(algorithm) if not r.optional or r.name in named)
    if algorithm.offline:
        return Dataflow(roles, samples=1)
    requests = algorithm.requests(Row((0,), {}))
    trained = sum(request.train for request in requests)
    return Dataflow(roles, samples=trained, extra=len(requests) - trained)


def _workload(arguments: argparse.Namespace, flow: Dataflow) -> Workload:
    from rlframe_plugins.mappers.workload import Workload, parse_lengths

    return Workload(
        prompts=arguments.prompts,
        samples=arguments.samples or flow.samples,
        prompt_tokens=arguments.prompt_tokens,
        responses=parse_lengths(arguments.response_tokens),
        minibatch_prompts=arguments.minibatch_prompts,
        epochs=arguments.epochs,
        extra=flow.extra,
    )


def _units(
    arguments: argparse.Namespace, flow: Dataflow, work: Workload, hardware: Hardware
) -> tuple[Unit, ...]:
    from rlframe.errors import ConfigError, unknown_name
    from rlframe_plugins.mappers.dataflow import ROLLOUT, Fixed, Unit, units_of
    from rlframe_plugins.mappers.grid import SCHEMES_OF
    from rlframe_plugins.mappers.models import load_model

    models = {"policy": load_model(arguments.model)}
    names = [role.name for role in flow.roles]
    if arguments.critic_model:
        critic = load_model(arguments.critic_model)
        models |= {r.name: critic for r in flow.roles if r.model in ("value", "score")}
    for text in arguments.role_model:
        role, _, model = text.partition("=")
        if role not in names:
            raise ConfigError(f"--role-model {text}: {unknown_name('role', role, names)}")
        models[role] = load_model(model)
    chosen = Unit.strategies if arguments.strategy == "any" else arguments.strategy.split(",")
    for strategy in chosen:
        if strategy not in SCHEMES_OF:
            raise ConfigError(unknown_name("strategy", strategy, SCHEMES_OF))
    known = ("auto", "any", "torch", "vllm")
    if arguments.rollout not in known:
        raise ConfigError(f"--rollout: {unknown_name('rollout', arguments.rollout, known)}")
    free = arguments.rollout == "any"
    strategies = {name: tuple(chosen) for name in names}
    fixed = {} if free else {ROLLOUT: Fixed(stages=1)}
    engine = "" if free else _engine(arguments, hardware)
    return units_of(flow.roles, models, work, strategies=strategies, fixed=fixed, engine=engine)

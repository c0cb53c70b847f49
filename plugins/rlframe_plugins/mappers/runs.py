"""What a run's config says of its workload and of the units that are placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlframe.algorithm import RoleSpec
from rlframe.config import Config as FitConfig
from rlframe.errors import ConfigError
from rlframe.roles import roles_of
from rlframe_plugins.mappers.dataflow import ROLLOUT, Fixed, Unit, units_of
from rlframe_plugins.mappers.grid import SCHEMES_OF
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.mappers.workload import Lengths, Workload, parse_lengths

__all__ = ["measured_together", "model_path", "run_units", "run_workload"]

_ZERO = ("ddp", "zero1", "zero2", "fsdp")


def run_workload(config: FitConfig, options: Any) -> Workload:
    """The workload of a run's config; ``options`` are those of ``mapper: auto``."""
    longest = config.rollout.config.max_new_tokens
    text = options.response_tokens
    prompts = config.data.prompts_per_step
    algo = config.algo.config
    per_step = min(getattr(algo, "minibatch_prompts", 0), prompts)
    return Workload(
        prompts=prompts,
        samples=getattr(algo, "samples_per_prompt", 1),
        prompt_tokens=options.prompt_tokens or config.data.max_prompt_tokens,
        responses=parse_lengths(text) if text else Lengths((float(longest),)),
        minibatch_prompts=per_step if per_step and prompts % per_step == 0 else 0,
        epochs=getattr(algo, "epochs", 1),
    )


def run_units(
    roles: Sequence[str], config: FitConfig, work: Workload, *, free: bool = False
) -> tuple[Unit, ...]:
    """What a run places: its algorithm's roles among ``roles``, and the rollout if it is one.

    Strategies are those of the config, and so are their sizes unless they are ``free``.
    """
    specs = [spec for spec in roles_of(config) if spec.name in roles]
    named = {spec.name: config.role(spec.name).strategy.name for spec in specs}
    for role, strategy in named.items():
        if strategy not in SCHEMES_OF:
            raise ConfigError(
                f"mapper auto has no memory model of strategy '{strategy}' (role '{role}'): use "
                f"--mapper fixed, or one of {', '.join(SCHEMES_OF)}"
            )
    fixed = {} if free else {spec.name: _fixed(config.role(spec.name)) for spec in specs}
    fixed[ROLLOUT] = _fixed_rollout(config.rollout.config, free)
    return units_of(
        specs,
        {spec.name: load_model(model_path(config, spec)) for spec in specs},
        work,
        rollout=ROLLOUT in roles,
        strategies={role: (strategy,) for role, strategy in named.items()},
        micro_tokens=0 if free else config.optim.tokens_per_microbatch,
        fixed=fixed,
        engine=config.rollout.name,
    )


def model_path(config: FitConfig, role: RoleSpec) -> str:
    """Where a role's weights come from: its own, or those of the role that it starts from."""
    if role.name not in config.roles and role.init_from is not None:
        return config.role(role.init_from).model.path
    return config.role(role.name).model.path


def _fixed(role: Any) -> Fixed:
    """The sizes that a role's strategy is configured with."""
    name, options = role.strategy.name, role.strategy.config
    again = "full" if role.model.gradient_checkpointing else "selective"
    if name == "fsdp":
        inside, away = options.tp * options.cp, options.cpu_offload
        return Fixed(("fsdp",), inside, 1, options.replicas, again, offload=away)
    if name == "deepspeed":
        scheme = _ZERO[options.zero]
        away = options.offload_params and options.offload_optimizer
        return Fixed((scheme,), 1, 1, recompute=again, offload=away)
    if name == "megatron":
        again = options.recompute if role.model.gradient_checkpointing else "none"
        scheme = "megatron" if options.distributed_optimizer else "ddp"
        return Fixed((scheme,), options.tp, options.pp, recompute=again)
    return Fixed(("ddp",), 1, 1, recompute=again)


def _fixed_rollout(options: Any, free: bool) -> Fixed:
    """Engines have no pipeline stages; those that cut a model say over how many ranks."""
    tensor = getattr(options, "tensor_parallel", 1)
    if free and hasattr(options, "tensor_parallel"):
        return Fixed(stages=1)
    return Fixed(tensor=tensor, stages=1, held=getattr(options, "max_batch", 0))


def measured_together(roles: Sequence[RoleSpec]) -> Iterator[frozenset[str]]:
    """Roles that have to share devices, since one is measured from the other."""
    for role in roles:
        if role.divergence is not None:
            yield frozenset({role.name, role.divergence.role})

"""Placeable units of a method: one a role, and the rollout as a unit of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlframe import RoleSpec
from rlframe_plugins.mappers.models import ModelShape
from rlframe_plugins.mappers.stages import STAGES
from rlframe_plugins.mappers.workload import Workload

__all__ = ["ROLLOUT", "STAGES", "Fixed", "Unit", "units_of"]

ROLLOUT = "rollout"
COPYING = ("vllm",)
"""Engines in processes of their own, to which weights are copied."""


@dataclass(frozen=True)
class Fixed:
    """What a config already says of a unit; 0, None or empty leaves it to the search."""

    schemes: tuple[str, ...] = ()
    """How states may be sharded, names of ``SCHEMES``."""
    tensor: int = 0
    """Ranks that share the rows of a mini-batch, without pipeline stages."""
    stages: int = 0
    """Pipeline stages."""
    copies: int = 0
    """Replicas of the weights that FSDP shards (HSDP)."""
    recompute: str = ""
    """A name of ``RECOMPUTE``."""
    offload: bool | None = None
    """Whether states stay in host memory."""
    held: int = 0
    """Most sequences that a rollout replica runs at once."""


@dataclass(frozen=True)
class Unit:
    """One thing to place, and what it does in a step."""

    name: str
    shape: ModelShape
    generates: bool = False
    infers: bool = False
    trained: bool = False
    epochs: int = 1
    minibatch_rows: int = 0
    micro_tokens: int = 0
    """Tokens that a micro-batch is filled up to; 0 is free."""
    strategies: tuple[str, ...] = ("fsdp", "deepspeed", "megatron")
    fixed: Fixed = Fixed()
    engine: str = ""
    """What generates; empty is one that can use the trainer's storage."""

    @property
    def copies(self) -> bool:
        """Whether the rollout has weights of its own, which come to it through host memory."""
        return self.engine in COPYING

    @property
    def twin(self) -> tuple[object, ...]:
        """Units with equal twins cost the same everywhere, so that they may be swapped."""
        work = (self.generates, self.infers, self.trained, self.epochs, self.minibatch_rows)
        return (self.shape, self.micro_tokens, self.strategies, self.fixed, self.engine, *work)


def units_of(
    roles: Sequence[RoleSpec],
    models: Mapping[str, ModelShape],
    workload: Workload,
    *,
    rollout: bool = True,
    strategies: Mapping[str, tuple[str, ...]] | None = None,
    micro_tokens: int = 0,
    fixed: Mapping[str, Fixed] | None = None,
    engine: str = "",
) -> tuple[Unit, ...]:
    """Units of ``Algorithm.roles()``; the policy is the first one.

    ``models`` gives each role's shape, that of the policy where a role has none; ``strategies``
    gives the strategies that a role may use, ``fixed`` what is said of it or of the rollout;
    ``engine`` is what generates.
    """
    said = fixed or {}
    units = [_unit(role, models, workload, strategies or {}, micro_tokens) for role in roles]
    if rollout:
        policy = units[0].shape
        units.append(Unit(ROLLOUT, policy, generates=True, strategies=("rollout",), engine=engine))
    return tuple(replace(u, fixed=said[u.name]) if u.name in said else u for u in units)


def _unit(
    role: RoleSpec,
    models: Mapping[str, ModelShape],
    workload: Workload,
    strategies: Mapping[str, tuple[str, ...]],
    micro_tokens: int,
) -> Unit:
    shape = models[role.name] if role.name in models else models["policy"]
    prompts = role.minibatch_prompts or workload.minibatch_prompts or workload.prompts
    free = Unit.strategies
    return Unit(
        name=role.name,
        shape=shape.with_head("scalar" if role.model in ("value", "score") else "lm"),
        infers=bool(role.outputs),
        trained=role.trained,
        epochs=role.epochs or workload.epochs,
        minibatch_rows=min(prompts, workload.prompts) * workload.samples,
        micro_tokens=micro_tokens,
        strategies=strategies.get(role.name, free),
    )

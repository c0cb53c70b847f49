"""Placeable units of a method: one a role, and the rollout as a unit of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlframe import RoleSpec
from rlframe_plugins.mappers.models import ModelShape
from rlframe_plugins.mappers.stages import STAGES
from rlframe_plugins.mappers.workload import Workload

__all__ = ["ROLLOUT", "STAGES", "Unit", "units_of"]

ROLLOUT = "rollout"


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
    """Most tokens of a micro-batch; 0 is free."""
    strategies: tuple[str, ...] = ("fsdp", "deepspeed", "megatron")
    whole: bool = False
    """Whether each device of a rollout holds the whole model (engines inside the workers)."""

    @property
    def twin(self) -> tuple[object, ...]:
        """Units with equal twins cost the same everywhere, so that they may be swapped."""
        fixed = (self.generates, self.infers, self.trained, self.epochs, self.minibatch_rows)
        return (self.shape, self.micro_tokens, self.strategies, self.whole, *fixed)


def units_of(
    roles: Sequence[RoleSpec],
    models: Mapping[str, ModelShape],
    workload: Workload,
    *,
    rollout: bool = True,
    strategies: Mapping[str, tuple[str, ...]] | None = None,
    micro_tokens: int = 0,
    whole: bool = False,
) -> tuple[Unit, ...]:
    """Units of ``Algorithm.roles()``; the policy is the first one.

    ``models`` gives each role's shape, that of the policy where a role has none; ``strategies``
    gives the strategies that a role may use; ``whole``: the rollout engine does not split a model.
    """
    units = [_unit(role, models, workload, strategies or {}, micro_tokens) for role in roles]
    if rollout:
        shape = units[0].shape
        units.append(Unit(ROLLOUT, shape, generates=True, strategies=("rollout",), whole=whole))
    return tuple(units)


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

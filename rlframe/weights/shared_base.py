"""A role whose model is another one's frozen base needs no weights of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rlframe.config.sections import LoraConfig

if TYPE_CHECKING:
    from rlframe.config import Config
    from rlframe.interfaces.cluster import Placement
    from rlframe.interfaces.model import EngineSpec

__all__ = ["with_shared_bases"]


def with_shared_bases(
    specs: Mapping[str, EngineSpec], config: Config, placement: Placement
) -> dict[str, EngineSpec]:
    """The same, with ``base_of`` where a role is the base of one that is trained by adapters.

    Both lie in one pool under one strategy and engine, so that one process holds them; the other
    role is a language model that starts from the same weights and is never trained.
    """
    owners = [name for name, spec in specs.items() if spec.model.optim and _adapters(spec)]
    shared = {}
    for name, spec in specs.items():
        beside = (o for o in owners if placement.pool_of[o] == placement.pool_of[name])
        mine = (o for o in beside if config.role(o).engine == config.role(name).engine)
        owner = next((o for o in mine if _is_base(spec, specs[o])), "")
        shared[name] = replace(spec, base_of=owner)
    return shared


def _adapters(spec: EngineSpec) -> bool:
    return spec.model.model.lora.rank > 0


def _is_base(spec: EngineSpec, trained: EngineSpec) -> bool:
    return (
        spec.model.optim is None
        and not spec.tokens_of
        and spec.model.kind == trained.model.kind == "policy"
        and spec.strategy == trained.strategy
        and _frozen(spec) == _frozen(trained)
    )


def _frozen(spec: EngineSpec) -> tuple[object, ...]:
    """What makes the weights and outputs of a model whose adapters are off."""
    path = spec.model.path
    model = replace(spec.model.model, path=path, lora=LoraConfig(), gradient_checkpointing=False)
    return path, model, spec.model.temperature

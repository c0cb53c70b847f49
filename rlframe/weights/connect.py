"""From a config and its groups to the engine that carries weights from trainer to rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from rlframe.calling.protocol import Mesh
    from rlframe.config import Config
    from rlframe.interfaces.checkpoint import CheckpointEngine
    from rlframe.interfaces.cluster import Placement, WorkerGroup

__all__ = ["check_learnable", "connect_checkpoint", "longest_prompt", "rollout_mesh"]


def check_learnable(config: Config) -> None:
    """Raise ConfigError where a method would sample with an engine that takes no weights."""
    engine, offline = config.rollout.load(), config.algo.load().offline
    if not offline and not engine.takes_weights:
        raise ConfigError(
            f"rollout '{config.rollout.name}' takes no weights, so that nothing could be learned "
            f"from it: use it with rlframe eval, and another --rollout here"
        )


def connect_checkpoint(config: Config, groups: Mapping[str, WorkerGroup]) -> Any:
    """The engine that gives the policy's weights to the rollout; None without one."""
    if "rollout" not in groups:
        return None
    policy, rollout = groups["policy"], groups["rollout"]
    source = policy.call("layout").result()[0]
    target = rollout.call("layout", source).result()[0].typed(config.rollout.config.dtype)
    engine: CheckpointEngine = config.checkpoint.load()(config.checkpoint.config)
    resharder = config.resharder.load()(config.resharder.config)
    plan = resharder.plan(*engine.layouts(source, target))
    if config.role("policy").model.lora.rank:
        adapters = policy.call("adapters").result()[0]
        if adapters is not None:
            engine.use_adapters(adapters)
    engine.prepare(plan, policy, rollout)
    return engine


def longest_prompt(config: Config) -> int:
    """The longest context that the rollout is asked with, tokens: of prompts, or of later turns."""
    context = int(config.env.load().context_tokens(config.env.config))
    return max(config.data.max_prompt_tokens, context - int(config.rollout.config.max_new_tokens))


def rollout_mesh(config: Config, placement: Placement) -> Mesh:
    """How the rollout engine itself lays generation over its pool, whatever the mapper counted on.

    Raises ConfigError for sizes that do not divide.
    """
    pool = placement.pool_of["rollout"]
    shared = placement.pool_of.get("policy") == pool
    engine, options = config.rollout.load(), config.rollout.config
    trained = placement.mesh_of["policy"] if shared else None
    mesh: Mesh = engine.mesh_of(options, placement.pools[pool].size, trained)
    return mesh

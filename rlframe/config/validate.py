"""What no section can check alone. A component may add ``validate(config)`` of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlframe.config.schema import Config
from rlframe.config.selected import Selected
from rlframe.errors import ConfigError, RlframeError, unknown_name

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm

__all__ = ["selected_components", "validate"]


def validate(config: Config) -> None:
    """Cross-field checks of the core, then of every chosen component. Raises ConfigError."""
    _check_pools(config)
    _check_roles(config)
    _check_overlap(config)
    minibatch = getattr(config.algo.config, "minibatch_prompts", 0)
    if minibatch > config.data.prompts_per_step:
        raise ConfigError(
            f"algo.minibatch_prompts={minibatch} is more than "
            f"data.prompts_per_step={config.data.prompts_per_step}: a step has too few prompts"
        )
    samples = getattr(config.algo.config, "samples_per_prompt", 1)
    if config.rollout.config.temperature == 0 and samples > 1:
        raise ConfigError(
            f"rollout.temperature=0 draws the same response {samples} times for each prompt, which "
            "teaches nothing: set it above 0 (validation is greedy by itself)"
        )
    for path, selected in selected_components(config):
        _validate_component(path, selected, config)


def _check_overlap(config: Config) -> None:
    """Rollout and update at once need weights of their own, or take turns."""
    scheduler = config.scheduler
    if not scheduler.load().overlaps:
        return
    if config.algo.load().offline:
        raise ConfigError(
            f"scheduler '{scheduler.name}' lets the rollout overlap the update, and algo "
            f"'{config.algo.name}' has no rollout: use --scheduler sync"
        )
    checkpoint = config.checkpoint
    if not checkpoint.load().shares_storage(checkpoint.config):
        return
    if not scheduler.load().takes_turns(scheduler.config):
        raise ConfigError(
            f"scheduler '{scheduler.name}' lets the rollout go on while the weights change, but "
            f"checkpoint '{checkpoint.name}' shares their storage: set checkpoint.copy=true, or "
            "give the rollout a pool of its own with checkpoint=transport, or take turns on the "
            "same devices with --scheduler async"
        )


def selected_components(config: Config) -> Iterator[tuple[str, Selected]]:
    """Every chosen component with the dotted key where it stands."""
    for name in config.__dataclass_fields__:
        value = getattr(config, name)
        if isinstance(value, Selected):
            yield name, value
        elif name in ("logger", "callback"):
            yield from ((f"{name}.{i}", one) for i, one in enumerate(value))
    yield from ((f"reward.parts.{i}", p.reward) for i, p in enumerate(config.reward.parts))
    for name, role in config.roles.items():
        yield f"roles.{name}.strategy", role.strategy


def _check_pools(config: Config) -> None:
    used = {f"roles.{name}.pool": role.pool for name, role in config.roles.items()}
    used["rollout.pool"] = config.rollout.config.pool
    for key, pool in used.items():
        if pool not in config.pools:
            raise ConfigError(f"{key}: {unknown_name('pool', pool, config.pools)}")


def _check_roles(config: Config) -> None:
    """``roles`` may name only what the method has."""
    try:
        algorithm = config.algo.load()(config.algo.config)
        roles = algorithm.roles()
    except RlframeError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"algo '{config.algo.name}' cannot be made: {reason}") from error
    problem = _problem_of(roles)
    if problem:
        raise ConfigError(f"algo '{config.algo.name}': roles() {problem}")
    from rlframe.roles import known_roles

    known = [role.name for role in known_roles(algorithm)]
    for name in config.roles:
        if name not in known:
            text = unknown_name("role", name, known)
            raise ConfigError(f"roles.{name}: {text} (roles of algo '{config.algo.name}')")
    _check_rewards(config, algorithm)
    _check_adapters(config, algorithm)


def _check_adapters(config: Config, algorithm: Algorithm) -> None:
    """Adapters are trained by strategies that claim it; a role may inherit options without rank."""
    from rlframe.config.sections import LoraConfig
    from rlframe.roles import roles_of

    if config.model.lora.rank == 0 and config.model.lora != LoraConfig():
        raise ConfigError("model.lora: alpha, dropout and targets need model.lora.rank above 0")

    for role in roles_of(config, algorithm):
        options = config.role(role.name)
        rank, strategy = options.model.lora.rank, options.strategy
        if role.trained and rank and "lora" not in strategy.load().capabilities:
            raise ConfigError(
                f"model.lora.rank={rank}: strategy '{strategy.name}' of role '{role.name}' trains "
                "no adapters: use --strategy ddp or fsdp, or set model.lora.rank=0 (or "
                f"roles.{role.name}.model.lora.rank=0)"
            )


def _check_rewards(config: Config, algorithm: Algorithm) -> None:
    """Rewards come from one place, and before the method asks for them."""
    from rlframe.roles import roles_of

    written = [r.name for r in roles_of(config, algorithm) if "rewards" in r.outputs.values()]
    if not written:
        return
    summands = [part.label for part in config.reward.parts if not part.into]
    if summands:
        raise ConfigError(
            f"roles.{written[0]} writes the rewards, and so does reward "
            f"'{summands[0]}': leave one of them out (reward=[]), or let the "
            "reward 'model' score beside others"
        )
    if algorithm.accepts_by_reward:
        raise ConfigError(
            f"algo '{config.algo.name}' chooses groups by their rewards, which roles.{written[0]} "
            "would give only later: take the reward 'model' instead (--reward model "
            f"reward.path={config.roles[written[0]].model.path})"
        )


def _problem_of(roles: Any) -> str:
    """What is wrong with the roles of a method, or an empty text."""
    from rlframe.algorithm import RoleSpec

    if not isinstance(roles, list | tuple) or not all(isinstance(r, RoleSpec) for r in roles):
        return f"returned {roles!r}: return a tuple of RoleSpec"
    names = [role.name for role in roles]
    if not names or names[0] != "policy":
        return "must begin with the policy"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"has '{twice[0]}' twice"
    if "rollout" in names:
        return "has 'rollout', which is the name of the rollout engine: choose another"
    for role in roles:
        if role.init_from is not None and role.init_from not in names:
            return f"'{role.name}' init_from: {unknown_name('role', role.init_from, names)}"
    if not any(role.trained for role in roles):
        return "has none with trained=True: nothing would be learned"
    return ""


def _validate_component(path: str, selected: Selected, config: Config) -> None:
    cls = selected.load()
    if not inspect.isclass(cls):
        return
    found = inspect.getattr_static(cls, "validate", None)
    if not isinstance(found, staticmethod | classmethod):
        return
    try:
        cls.validate(config)  # type: ignore[attr-defined]
    except RlframeError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error

"""A config as plain values and back: what a snapshot keeps (JSON, nothing is unpickled)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rlframe.config.selected import Selected

if TYPE_CHECKING:
    from rlframe.config.schema import Config, RewardConfig, RoleConfig
    from rlframe.host.host import PluginHost

__all__ = ["config_from_dict", "config_to_dict"]


def config_to_dict(config: Config) -> dict[str, Any]:
    """Every option as a YAML file would say it: dicts, lists, numbers, texts, None."""
    result: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name == "reward":
            result["reward"] = _reward(value)
        elif one.name == "roles":
            result["roles"] = {name: _role(role) for name, role in value.items()}
        elif one.name != "default_role":
            result[one.name] = _plain(value)
    return result


def config_from_dict(
    data: Mapping[str, Any], host: PluginHost, *, user_code: bool = False
) -> Config:
    """The reverse of :func:`config_to_dict`; components are looked up by name.

    ``user_code`` allows components written as ``file.py:Class`` or ``pkg.mod:Class``; without it
    they raise ConfigError, so that reading a snapshot runs no code that it names.
    """
    from rlframe.config.assemble import Assembly
    from rlframe.config.layers import normalise
    from rlframe.config.tree import tree_of

    tree = tree_of(data, "snapshot")
    assert isinstance(tree, dict)
    return Assembly(host, [normalise(tree)], {}, from_snapshot=True, user_code=user_code).build()


def _plain(value: Any) -> Any:
    if isinstance(value, Selected):
        return _selected(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.init}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _selected(selected: Selected) -> dict[str, Any]:
    """Name first, then its options; a user's file by its whole path."""
    name = selected.target if selected.sha256 or selected.value is not None else selected.name
    return {"name": name, **(_plain(selected.config) or {})}


def _reward(reward: RewardConfig) -> dict[str, Any]:
    parts = [
        {
            **_selected(part.reward),
            "label": part.label,
            "weight": part.weight,
            "when": _plain(part.when),
            "into": part.into,
        }
        for part in reward.parts
    ]
    return {
        "parts": parts,
        "on_error": reward.on_error,
        "timeout_s": reward.timeout_s,
        "retries": reward.retries,
        "retry_wait_s": reward.retry_wait_s,
    }


def _role(role: RoleConfig) -> dict[str, Any]:
    return {key: _plain(getattr(role, key)) for key in ("model", "optim", "strategy", "pool")}

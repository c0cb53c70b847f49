"""Loading a config: defaults, files, command line; components; merge; ranges; cross-field checks.

Past this module no code sees OmegaConf, dicts or environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlframe.config.assemble import Assembly
from rlframe.config.layers import COMPONENTS, DEFAULTS, LISTS, normalise
from rlframe.config.old_keys import with_new_keys
from rlframe.config.schema import Config
from rlframe.config.tree import Leaf, Tree, merge, parse_dotlist, read_yaml, set_path, tree_of
from rlframe.config.validate import validate
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost

__all__ = ["FLAGS", "WITH_DEFAULT_MODEL", "Asked", "Loaded", "assemble", "load_config"]


@dataclass(frozen=True)
class Asked:
    """What a user said: files, ``key=value`` arguments, selector flags, live objects.

    ``flags`` maps a flag's word ("algo", "model", "data", ...) to its value; ``objects`` maps a
    section to a class, an instance or a reward function, as ``rlframe.fit`` takes them;
    ``values`` are plain values by dotted key, from Python.
    """

    files: Sequence[str | Path] = ()
    dotlist: Sequence[str] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A finished config, and where each value came from (``tree``) for ``rlframe config``."""

    config: Config
    tree: Tree
    notes: tuple[str, ...] = ()
    """Options that were given for a component that is not chosen: one line each."""


FLAGS = {
    "model": "model.path",
    "data": "data.train",
    "reward": "reward",
    **{key: key for key in (*COMPONENTS, *LISTS)},
}
"""Flags that set a value, and the key that each sets."""
WITH_DEFAULT_MODEL = "with the default model"
"""How the source of a value ends that is left out where another model is trained."""


def load_config(host: PluginHost, asked: Asked) -> Loaded:
    """Load, resolve and check a config. Raises ConfigError with one clear line."""
    assembly = assemble(host, asked)
    config = assembly.build()
    validate(config)
    return Loaded(config, assembly.tree, assembly.notes)


def assemble(host: PluginHost, asked: Asked) -> Assembly:
    """The layers of what was asked for, nothing resolved yet."""
    objects = {**asked.objects}
    values = {**asked.values}
    for key in (*COMPONENTS, "reward"):
        if key in values and not isinstance(values[key], str | Mapping | list | tuple):
            objects[key] = values.pop(key)
    if isinstance(objects.get("reward"), list | tuple):
        values["reward"] = objects.pop("reward")
    layers = [
        with_new_keys(normalise(layer)) for layer in _layers(host, replace(asked, values=values))
    ]
    return Assembly(host, layers, objects)


def _layers(host: PluginHost, asked: Asked) -> list[Tree]:
    layers = [read_yaml(path) for path in asked.files]
    layers.append(_python_layer(asked.values))
    layers.append(_command_line(asked))
    return [layer for layer in (*_defaults(host, layers), *layers) if layer]


def _defaults(host: PluginHost, layers: Sequence[Tree]) -> list[Tree]:
    """What holds where nothing is said; ``tuned`` holds only for the default model.

    A learning rate that suits a tiny model would ruin another one.
    """
    path = host.defaults()
    if path is None:
        return []
    tree = read_yaml(path, DEFAULTS)
    tuned = _section(tree, "tuned")
    tuned = merge(tuned, _brought(_section(tuned, "brings"), layers))
    tree = merge(tree, _brought(_section(tree, "brings"), layers))
    known = _spoken(tree, "model.path")
    said = [leaf for layer in layers if (leaf := _spoken(layer, "model.path")) is not None]
    other = bool(said) and (known is None or said[-1].value != known.value)
    return [tree] if other else [tree, _marked(tuned)]


def _section(tree: Tree, key: str) -> Tree:
    """Take a mapping out of the defaults."""
    found = tree.pop(key, {})
    if isinstance(found, Leaf):
        raise ConfigError(f"{key} ({found.source}): expected sections below it")
    return found


def _brought(brings: Tree, layers: Sequence[Tree]) -> Tree:
    """Defaults that go with a component that was chosen: ``{cluster: {NAME: defaults}}``."""
    found: Tree = {}
    for key in brings:
        said = [leaf for layer in layers if (leaf := _spoken(layer, key)) is not None]
        by_name = _section(dict(brings), key)
        if said and isinstance(more := by_name.get(str(said[-1].value), {}), dict):
            found = merge(found, more)
    return found


def _marked(tree: Tree) -> Tree:
    """The values of ``tuned``, whose source says when they hold."""
    return {
        key: replace(node, source=f"{node.source}, {WITH_DEFAULT_MODEL}")
        if isinstance(node, Leaf)
        else _marked(node)
        for key, node in tree.items()
    }


def _command_line(asked: Asked) -> Tree:
    tree = parse_dotlist(asked.dotlist)
    for flag, value in asked.flags.items():
        if not value.strip():
            raise ConfigError(f"--{flag} has no value")
        key = FLAGS[flag]
        said = _spoken(tree, key)
        if said is not None and said.value != value:
            raise ConfigError(
                f"--{flag} {value} and {key}={said.value} contradict each other: give one of them"
            )
        set_path(tree, key, Leaf(value, "command line", value))
    return tree


def _spoken(tree: Tree, key: str) -> Leaf | None:
    """What the dotlist says for a flag's key, also as ``KEY.name``."""
    node: Tree | Leaf | None = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node = node.get("name")
    return node if isinstance(node, Leaf) else None


def _python_layer(values: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for key, value in values.items():
        set_path(tree, key, tree_of(value, "python"))
    return tree

"""A component section: its class, its options with their defaults, and the ``Selected`` of it."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from rlframe.config.build import build, default_tree, first_source
from rlframe.config.layers import Chosen
from rlframe.config.sections import SamplingConfig
from rlframe.config.selected import Selected
from rlframe.config.tree import Leaf, Tree, merge
from rlframe.errors import ConfigError, PluginError
from rlframe.host.components import WORDS
from rlframe.host.host import PluginHost
from rlframe.host.resolve import Resolved, resolve, resolve_object

__all__ = ["Option", "Selector", "config_class", "finish"]


@dataclass(frozen=True)
class Option:
    """A chosen component and its section: the name, and every option, given or default."""

    resolved: Resolved
    tree: Tree


def config_class(resolved: Resolved) -> type[Any] | None:
    """The nested ``Config`` of a component, or None. Raises PluginError: it is no dataclass."""
    config = getattr(resolved.offered, "Config", None)
    word = WORDS.get(resolved.kind, resolved.kind)
    if config is None:
        return SamplingConfig if resolved.kind == "rollout" else None
    if not inspect.isclass(config) or not is_dataclass(config):
        raise PluginError(f"{word} '{resolved.name}': its Config must be a frozen dataclass")
    if resolved.kind == "rollout" and not issubclass(config, SamplingConfig):
        raise PluginError(
            f"rollout '{resolved.name}': its Config must derive from rlframe.config.SamplingConfig"
        )
    return config


@dataclass
class Selector:
    """Resolves component sections; ``objects`` are live classes or instances by section."""

    host: PluginHost
    objects: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    user_code: bool = True
    """Whether a name may be ``file.py:Class`` or ``pkg.mod:Class``."""

    def option(self, kind: str, chosen: Chosen, path: str) -> Option:
        """Resolve the name of a section and lay the defaults under its options."""
        word = WORDS.get(kind, kind)
        resolved, name = self._resolve(kind, chosen, path, word)
        config = config_class(resolved)
        source = f"default of {word} '{resolved.name}'"
        tree: Tree = default_tree(config, source) if config is not None else {}
        if kind == "reward":
            shared = {"weight": Leaf(1.0, source), "when": Leaf({}, source)}
            shared["into"] = Leaf("", source)
            tree = {"label": Leaf("", source, ""), **shared, **tree}
        core = _core_fields(config)
        given, notes = chosen.keep(lambda key: key in core)
        self.notes += [f"{path}.{note}" for note in notes]
        if path in self.objects:
            given = merge(_instance_tree(self.objects[path]), given)
        return Option(resolved, merge({"name": name}, merge(tree, given | {"name": name})))

    def _resolve(self, kind: str, chosen: Chosen, path: str, word: str) -> tuple[Resolved, Leaf]:
        if path in self.objects:
            resolved = resolve_object(kind, self.objects[path], self.host)
            return resolved, Leaf(resolved.name, "python", resolved.name)
        name = chosen.tree.get("name")
        if not isinstance(name, Leaf) or not isinstance(name.value, str):
            known = ", ".join(self.host.components(kind)) or "none"
            how = f"--{word} NAME" if path == word else f"{path}=NAME"
            raise ConfigError(f"no {word} is chosen: {how}. Known: {known}.")
        if ":" in name.value and not self.user_code:
            raise ConfigError(f"{path} = '{name.value}' is code that a {name.source} may not name")
        try:
            return resolve(self.host, kind, name.value), name
        except PluginError as error:
            if name.source == "command line":
                raise
            raise PluginError(f"{error} ({name.source})") from error


def finish(resolved: Resolved, tree: Tree, path: str) -> Selected:
    """Build the options. Raises ConfigError for unknown keys, wrong types, values out of range."""
    options = {k: v for k, v in tree.items() if k != "name"}
    config = config_class(resolved)
    if config is not None:
        built = build(config, options, path)
    elif options:
        key = next(iter(options))
        raise ConfigError(
            f"unknown key '{path}.{key}' ({first_source(options[key])}): "
            f"'{resolved.name}' has no options"
        )
    else:
        built = None
    value = None if resolved.importable else resolved.value
    # Passed from Python by itself: a file can name it by its module only.
    passed = resolved.component is None and resolved.importable and ":" not in resolved.name
    name = resolved.target if passed else resolved.name
    return Selected(name, resolved.target, built, resolved.sha256, value, resolved.adapter)


def _core_fields(config: type[Any] | None) -> set[str]:
    """Fields that the core declares: they mean the same in every component of a kind."""
    classes = inspect.getmro(config) if config is not None else ()
    core = [c for c in classes if c.__module__.split(".")[0] == "rlframe"]
    return {name for c in core for name in vars(c).get("__annotations__", {})}


def _instance_tree(value: Any) -> Tree:
    """The options of a live instance as a layer; a class or function gives none."""
    config = getattr(value, "config", None)
    if inspect.isclass(value) or not is_dataclass(config) or isinstance(config, type):
        return {}
    return {
        key: Leaf(list(v) if isinstance(v, tuple) else v, "python")
        for key, v in asdict(config).items()
    }

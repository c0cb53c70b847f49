"""Layers of plain data (defaults, files, command line) merged into one, each component's apart.

The options of a component stand beside its name, so a later layer that chooses another name leaves
the earlier name's own options behind: ``clip_ratio`` of one method is not that of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlframe.config.tree import Leaf, Tree, leaves, merge, plain
from rlframe.errors import ConfigError

__all__ = ["COMPONENTS", "DEFAULTS", "LISTS", "Chosen", "choose", "normalise"]

COMPONENTS = {
    "algo": "algorithm",
    "strategy": "strategy",
    "rollout": "rollout",
    "env": "environment",
    "cluster": "cluster",
    "scheduler": "scheduler",
    "tail": "tail",
    "transfer": "transfer",
    "checkpoint": "checkpoint",
    "resharder": "resharder",
    "mapper": "mapper",
}
"""Sections that hold one component, and its kind."""

LISTS = {"logger": "logger", "callback": "callback"}
"""Sections that hold a list of components, and their kind."""

DEFAULTS = "defaults"
"""Source of a value that the defaults file of a plugin gave."""


_IDENTITY = ("parts", "name")


@dataclass(frozen=True)
class Chosen:
    """A component section after all layers.

    ``tree`` has ``name`` and the options given for that name; ``left`` are the options that were
    given for another name, by key.
    """

    tree: Tree
    left: Tree = field(default_factory=dict)
    left_name: str = ""

    def keep(self, shared: Callable[[str], bool]) -> tuple[Tree, list[str]]:
        """The options with those of ``left`` that every component of the kind shares.

        Also one line for each other option that a user had written.
        """
        kept: Tree = {k: v for k, v in self.left.items() if shared(k)}
        lost = {k: v for k, v in self.left.items() if not shared(k)}
        notes = [
            f"{key}={leaf.value!r} ({leaf.source}) was for '{self.left_name}' and is left out"
            for key, leaf in leaves(lost)
            if not is_default(leaf)
        ]
        return merge(kept, self.tree), notes


def is_default(leaf: Leaf) -> bool:
    """Whether the value stood in the defaults file."""
    return leaf.source.split(":")[0] == DEFAULTS


def normalise(tree: Tree) -> Tree:
    """One layer with every component section as ``{name: ..., options}``.

    Raises ConfigError for a section that is neither a name nor a mapping.
    """
    result = dict(tree)
    for key in tree.keys() & (COMPONENTS.keys() | {"reward"}):
        result[key] = _named(key, tree[key])
    for key in tree.keys() & LISTS.keys():
        result[key] = _listed(key, tree[key])
    roles = tree.get("roles")
    if isinstance(roles, dict):
        result["roles"] = {name: _role(name, role) for name, role in roles.items()}
    return result


def choose(key: str, layers: Sequence[Tree]) -> Chosen:
    """Merge one component section over all layers, lowest first."""
    tree: Tree = {}
    left: Tree = {}
    left_name = ""
    for layer in layers:
        section = layer.get(key, {})
        assert isinstance(section, dict)
        before, now = _identity(tree), _identity(section)
        if before is not None and now is not None and before.value != now.value:
            options = {k: v for k, v in tree.items() if k not in _IDENTITY}
            if is_default(before):
                options = {k: v for k, v in options.items() if _defaulted(v)}
            left, left_name = merge(left, options), str(before.value)
            tree = {k: v for k, v in tree.items() if k not in options and k not in _IDENTITY}
        tree = merge(tree, section)
    return Chosen(tree, left, left_name)


def _defaulted(node: Tree | Leaf) -> bool:
    return all(is_default(leaf) for _, leaf in leaves({"": node}))


def _identity(section: Tree) -> Leaf | None:
    """What says which component a section is about: its name, or its list of parts."""
    for key in _IDENTITY:
        node = section.get(key)
        if isinstance(node, Leaf):
            return node
    return None


def _named(key: str, node: Tree | Leaf) -> Tree:
    if not isinstance(node, Leaf):
        name = node.get("name")
        if name is not None and not (isinstance(name, Leaf) and isinstance(name.value, str)):
            raise ConfigError(f"{key}.name must be the name of a component{_at(name)}")
        return node
    if node.value is None:
        return {}
    if key == "reward" and isinstance(node.value, list):
        return {"parts": node}
    if not isinstance(node.value, str) or not node.value:
        raise ConfigError(f"{key} = {node.value!r} ({node.source}): expected a name")
    return {"name": node}


def _listed(key: str, node: Tree | Leaf) -> Tree | Leaf:
    if not isinstance(node, Leaf) and all(k.isdecimal() for k in node):
        return node
    if not isinstance(node, Leaf):
        source = next((leaf.source for _, leaf in leaves(node)), DEFAULTS)
        return Leaf(_items(key, node), source)
    if node.value is None:
        return Leaf([], node.source)
    if isinstance(node.value, str):
        return Leaf(_names(node.value), node.source)
    if not isinstance(node.value, list):
        raise ConfigError(f"{key} = {node.value!r} ({node.source}): expected a list of names")
    return node


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _items(key: str, node: Tree) -> list[Any]:
    """``--logger a,b`` beside ``logger.1.option=..``, or one name beside its options."""
    name = node.get("name")
    if not isinstance(name, Leaf) or not isinstance(name.value, str):
        return [plain(node)]
    names = _names(name.value)
    options = {k: v for k, v in node.items() if k != "name"}
    if len(names) == 1 and not any(k.isdecimal() for k in options):
        return [plain(node)]
    items: list[dict[str, Any]] = [{"name": one} for one in names]
    for index, own in options.items():
        if not index.isdecimal() or int(index) >= len(items) or isinstance(own, Leaf):
            said = _first(own)
            where = ", ".join(f"{key}.{i} is {one}" for i, one in enumerate(names))
            raise ConfigError(f"{key}.{index} ({said.source}): say for which one, {where}")
        items[int(index)] |= plain(own)
    return items


def _first(node: Tree | Leaf) -> Leaf:
    """The first value in a node that is not empty."""
    return node if isinstance(node, Leaf) else next(leaf for _, leaf in leaves(node))


def _role(name: str, role: Tree | Leaf) -> Tree | Leaf:
    if isinstance(role, Leaf):
        return {} if role.value is None else role
    if "strategy" not in role:
        return role
    return {**role, "strategy": _named(f"roles.{name}.strategy", role["strategy"])}


def _at(node: Tree | Leaf) -> str:
    return f", not {node.value!r} ({node.source})" if isinstance(node, Leaf) else ""

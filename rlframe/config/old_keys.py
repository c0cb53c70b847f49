"""Options under the names that they had before: moved to those of now, with a warning."""

from __future__ import annotations

from rlframe.config.tree import Leaf, Tree, leaves, set_path
from rlframe.deprecations import DEPRECATIONS, Deprecated
from rlframe.errors import ConfigError

__all__ = ["with_new_keys"]


def with_new_keys(layer: Tree) -> Tree:
    """The layer with renamed options where they belong. Raises ConfigError where both are given."""
    for row in DEPRECATIONS:
        if row.what == "option":
            layer = _moved(layer, row)
    return layer


def _moved(layer: Tree, row: Deprecated) -> Tree:
    old, rest = _without(layer, row.old.split("."))
    if old is None:
        return layer
    source = old.source if isinstance(old, Leaf) else next((x.source for _, x in leaves(old)), "")
    if _without(rest, row.instead.split("."))[0] is not None:
        raise ConfigError(f"{row.old} ({source}) is the old name of {row.instead}: give one")
    row.warn(source)
    set_path(rest, row.instead, old)
    return rest


def _without(tree: Tree, path: list[str]) -> tuple[Tree | Leaf | None, Tree]:
    """What stands at a path, and a copy without it; sections are copied along the path."""
    head, *below = path
    node, rest = tree.get(head), dict(tree)
    if node is None or (below and isinstance(node, Leaf)):
        return None, rest
    if not below:
        del rest[head]
        return node, rest
    assert isinstance(node, dict)
    found, rest[head] = _without(node, below)
    return found, rest

"""What a config would choose, for ``--help``: components, their options, the values in effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlframe.config.load import WITH_DEFAULT_MODEL, Asked, assemble
from rlframe.config.options import shown
from rlframe.config.select import config_class
from rlframe.config.tree import Leaf, Tree
from rlframe.host.host import PluginHost

__all__ = ["Outline", "OutlinePart", "outline"]


@dataclass(frozen=True)
class OutlinePart:
    """A chosen component: its name, what it is, the class of its options."""

    name: str
    summary: str
    config: type[Any] | None


@dataclass(frozen=True)
class Outline:
    """Chosen components by dotted key, and every value that is in effect."""

    components: Mapping[str, OutlinePart]
    tree: Tree

    def value(self, key: str, default: str) -> str:
        """The value in effect of an option as text; ``default`` where it has none."""
        leaf = self._leaf(key)
        return default if leaf is None else shown(leaf.value)

    def is_tuned(self, key: str) -> bool:
        """Whether the value in effect holds for the default model only."""
        leaf = self._leaf(key)
        return leaf is not None and leaf.source.endswith(WITH_DEFAULT_MODEL)

    def _leaf(self, key: str) -> Leaf | None:
        node: Tree | Leaf | None = self.tree
        for part in key.split("."):
            if part != "parts" and isinstance(node, dict) and part not in node and "parts" in node:
                node = node["parts"]
                node = node.get("0") if isinstance(node, dict) else None
            node = node.get(part) if isinstance(node, dict) else None
        return node if isinstance(node, Leaf) else None


def outline(host: PluginHost, asked: Asked) -> Outline:
    """Resolve what is asked for without checking options. Raises ConfigError."""
    assembly = assemble(host, asked)
    assembly.prepare()
    components = {}
    for path, resolved in assembly.slots.items():
        summary = resolved.component.summary if resolved.component else ""
        if not summary and resolved.value.__doc__:
            summary = resolved.value.__doc__.strip().splitlines()[0]
        components[path] = OutlinePart(resolved.name, summary, config_class(resolved))
    return Outline(components, assembly.tree)

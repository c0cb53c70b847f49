"""A loaded config as YAML, each value with where it came from; it can be read back as a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from rlframe.config.load import Loaded
from rlframe.config.tree import Leaf, Tree, YamlLoader

__all__ = ["render"]

_WIDTH = 46
_ITEMS = ("logger", "callback", "reward.parts")


class _Dumper(yaml.SafeDumper):
    """Quotes what our loader would read as something else."""


_Dumper.yaml_implicit_resolvers = YamlLoader.yaml_implicit_resolvers


def render(loaded: Loaded) -> str:
    """YAML of every option, with a comment that says where its value came from."""
    return "\n".join(_lines(loaded.config.to_dict(), loaded.tree, "", "")) + "\n"


def _lines(values: Mapping[str, Any], sources: Tree, path: str, indent: str) -> Iterator[str]:
    for key, value in values.items():
        where = f"{path}.{key}" if path else key
        node = sources.get(key, {})
        below = node if isinstance(node, dict) else {}
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_text(key)}:"
            yield from _lines(value, below, where, indent + "  ")
        elif where in _ITEMS and value:
            yield f"{indent}{_text(key)}:"
            yield from _item_lines(value, below, where, indent)
        else:
            source = node.source if isinstance(node, Leaf) else "default"
            yield _line(f"{indent}{_text(key)}: {_text(value)}", source)


def _item_lines(items: Sequence[Any], sources: Tree, path: str, indent: str) -> Iterator[str]:
    for index, item in enumerate(items):
        node = sources.get(str(index), {})
        assert isinstance(node, dict)
        lines = list(_lines(item, node, f"{path}.{index}", indent + "    "))
        yield f"{indent}  - {lines[0][len(indent) + 4 :]}"
        yield from lines[1:]


def _line(text: str, source: str) -> str:
    return f"{text:<{_WIDTH}}  # {source}"


def _text(value: Any) -> str:
    dumped = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True
    )
    return dumped.removesuffix("\n").removesuffix("\n...")

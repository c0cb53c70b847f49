"""YAML files and ``key=value`` arguments as plain data that remembers where each value stood.

Scalars follow YAML 1.2: only ``true`` and ``false`` are booleans, ``1e-6`` is a number, dates are
text. Nothing in a file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from rlframe.errors import ConfigError

__all__ = [
    "Leaf",
    "Tree",
    "YamlLoader",
    "leaves",
    "merge",
    "parse_dotlist",
    "parse_yaml",
    "plain",
    "read_yaml",
    "set_path",
    "tree_of",
]


@dataclass(frozen=True)
class Leaf:
    """A value, the text that it was written as (None for a list), and where it stood."""

    value: Any
    source: str
    text: str | None = None


Tree = dict[str, "Tree | Leaf"]


class YamlLoader(yaml.SafeLoader):
    """YAML 1.2 scalars."""


YamlLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf)|\.(nan|NaN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    return int(text, 16 if text.startswith("0x") else 10)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
    return float(text)


YamlLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
YamlLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def read_yaml(path: str | Path, label: str | None = None) -> Tree:
    """A YAML file as a tree; an empty file gives an empty one.

    Raises ConfigError with file and line: no such file, syntax, a key written twice, no mapping.
    """
    file = Path(path).expanduser()
    name = label or str(path)
    if file.is_dir() or not file.exists():
        problem = "is a folder, not a YAML file" if file.is_dir() else "does not exist"
        raise ConfigError(f"config file {path} {problem}: check --config")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> Tree:
    """A YAML text as a tree; ``name`` is what errors call it."""
    loader = YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name} must hold 'key: value' lines at its top")
        return _mapping(loader, node, name, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise ConfigError(f"{where}: YAML error: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: YAML error: {error}") from error
    finally:
        loader.dispose()


def parse_dotlist(arguments: Iterable[str], source: str = "command line") -> Tree:
    """``["optim.lr=1e-6", ...]`` as a tree. Raises ConfigError: no ``=``, no value, twice."""
    tree: Tree = {}
    seen: set[str] = set()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key or argument.startswith("-"):
            raise ConfigError(
                f"'{argument}' is neither a flag nor key=value: write for example optim.lr=1e-6"
            )
        if not text.strip():
            raise ConfigError(
                f"{key}= has no value: write {key}=null for none, {key}=\"''\" for ''"
            )
        if key in seen:
            raise ConfigError(f"{key} is given twice on the {source}")
        seen.add(key)
        set_path(tree, key, _dotlist_value(key, text, source))
    return tree


def _dotlist_value(key: str, text: str, source: str) -> Tree | Leaf:
    loader = YamlLoader(text)
    try:
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            if re.fullmatch(r"\{\w+\}.*|.*\{\w+\}", text):  # a template, not a mapping
                return Leaf(text, source, text)
            return _mapping(loader, node, source, ())
        value = loader.construct_document(node)
    except yaml.YAMLError:
        return Leaf(text, source, text)
    finally:
        loader.dispose()
    quoted = isinstance(node, yaml.ScalarNode) and node.style in ("'", '"')
    return Leaf(value, source, str(value) if quoted else text)


def set_path(tree: Tree, key: str, node: Tree | Leaf) -> None:
    """Put a node under a dotted key. Raises ConfigError where a value stands in the way."""
    *parents, last = key.split(".")
    for i, part in enumerate(parents):
        child = tree.setdefault(part, {})
        if isinstance(child, Leaf):
            if not isinstance(child.value, str):
                upper = ".".join(parents[: i + 1])
                raise ConfigError(f"{key} cannot be set: {upper} is {child.value!r}")
            child = tree[part] = {"name": child}
        tree = child
    before = tree.get(last)
    if isinstance(before, dict) and isinstance(node, dict):
        tree[last] = merge(before, node)
    elif isinstance(before, dict) and isinstance(node, Leaf) and isinstance(node.value, str):
        before["name"] = node
    else:
        tree[last] = node


def merge(base: Tree, over: Tree) -> Tree:
    """A new tree: ``over`` wins key by key; a value replaces a section and the reverse.

    Keys that are numbers change items of a list. Raises ConfigError for an item that is not there.
    """
    merged = dict(base)
    for key, node in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(node, dict):
            merged[key] = merge(before, node)
        elif isinstance(before, Leaf) and isinstance(before.value, list) and _is_items(node):
            merged[key] = _change_items(before, node, key)
        else:
            merged[key] = node
    return merged


def _is_items(node: Tree | Leaf) -> TypeGuard[Tree]:
    return isinstance(node, dict) and bool(node) and all(key.isdecimal() for key in node)


def _change_items(before: Leaf, items: Tree, key: str) -> Leaf:
    changed = list(before.value)
    source = before.source
    for index, node in items.items():
        if int(index) >= len(changed):
            raise ConfigError(f"{key}.{index} is not there: {key} has {len(changed)} items")
        item = changed[int(index)]
        if isinstance(node, dict):
            item = {"name": item} if isinstance(item, str) else item
            changed[int(index)] = plain(merge(_section_of(item, before.source), node))
        else:
            changed[int(index)] = node.value
        source = next((leaf.source for _, leaf in leaves({"": node})), source)
    return Leaf(changed, f"{before.source}, {source}")


def _section_of(value: Any, source: str) -> Tree:
    tree = tree_of(value, source)
    return tree if isinstance(tree, dict) else {}


def tree_of(value: Any, source: str) -> Tree | Leaf:
    """Plain values as a tree, all from one source."""
    if isinstance(value, Mapping):
        return {str(k): tree_of(v, source) for k, v in value.items()}
    listed = list(value) if isinstance(value, tuple) else value
    return Leaf(listed, source, value if isinstance(value, str) else None)


def plain(node: Tree | Leaf) -> Any:
    """A tree as dicts and values, without its sources."""
    if isinstance(node, Leaf):
        return node.value
    return {key: plain(child) for key, child in node.items()}


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every value with its dotted key."""
    for key, node in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(node, Leaf):
            yield path, node
        else:
            yield from leaves(node, path)


def _mapping(loader: YamlLoader, node: yaml.MappingNode, name: str, above: tuple[int, ...]) -> Tree:
    if id(node) in above:
        raise ConfigError(f"{name}:{node.start_mark.line + 1}: a section contains itself")
    _check_twice(node, name)
    loader.flatten_mapping(node)
    tree: Tree = {}
    for key_node, value_node in node.value:
        key = key_node.value
        line = f"{name}:{value_node.start_mark.line + 1}" if name != "command line" else name
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{line}: a key must be a word")
        if isinstance(value_node, yaml.MappingNode):
            tree[key] = _mapping(loader, value_node, name, (*above, id(node)))
        else:
            text = value_node.value if isinstance(value_node, yaml.ScalarNode) else None
            tree[key] = Leaf(loader.construct_object(value_node, deep=True), line, text)
    return tree


def _check_twice(node: yaml.MappingNode, name: str) -> None:
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise ConfigError(
                f"{name}:{line}: key '{key}' is written twice (first in line {seen[key]})"
            )
        seen[key] = line

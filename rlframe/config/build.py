"""From a tree to a frozen dataclass: keys, types, ranges; OmegaConf converts the values."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlframe.config.tree import Leaf, Tree, plain
from rlframe.errors import ConfigError, PluginError, nearest

__all__ = ["build", "default_tree", "describe_type", "field_types", "first_source"]


def build(cls: type[Any], tree: Tree, path: str, **given: Any) -> Any:
    """An instance of dataclass ``cls`` from the tree of section ``path``.

    ``given`` are fields that the caller made. Raises ConfigError naming key, value, where it stood
    and what was expected.
    """
    hints = field_types(cls)
    known = {f.name: f for f in fields(cls) if f.init}
    values: dict[str, Any] = dict(given)
    for key, node in tree.items():
        if key not in known or key in given:
            raise ConfigError(_unknown_key(path, key, node, [k for k in known if k not in given]))
        values[key] = convert(hints[key], node, f"{path}.{key}" if path else key)
    missing = [f.name for f in known.values() if _is_required(f) and f.name not in values]
    if missing:
        name = f"{path}.{missing[0]}" if path else missing[0]
        raise ConfigError(f"{name} has no value: write {name}=VALUE")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(_range_message(path, tree, str(error), list(known))) from error


def convert(hint: Any, node: Tree | Leaf, path: str) -> Any:
    """One field's value as its type. Raises ConfigError."""
    inner, optional = _without_none(hint)
    empty = isinstance(node, Leaf) and node.value is None
    if optional and empty:
        return None
    if is_dataclass(inner):
        return build(inner, {} if empty else _section(node, path), path)  # type: ignore[arg-type]
    arguments = get_args(inner)
    if get_origin(inner) is dict and is_dataclass(arguments[1]):
        section = {} if empty else _section(node, path)
        return {k: convert(arguments[1], v, f"{path}.{k}") for k, v in section.items()}
    if inner is str and isinstance(node, Leaf) and node.text is not None and not empty:
        return node.text if not isinstance(node.value, str) else node.value
    return _leaf(hint, inner, node, path)


def _leaf(hint: Any, inner: Any, node: Tree | Leaf, path: str) -> Any:
    value = plain(node)
    if isinstance(value, str) and inner in (str, Any):
        return value
    if inner is bool and not isinstance(value, bool | str):
        raise ConfigError(_wrong_type(path, node, inner))
    if get_origin(inner) is Literal and isinstance(node, Leaf) and node.text is not None:
        value = node.text if all(isinstance(a, str) for a in get_args(inner)) else value
    try:
        config = OmegaConf.structured(_holder(hint))
        OmegaConf.update(config, "value", value)
        found = OmegaConf.to_object(config).value  # type: ignore[union-attr]
    except OmegaConfBaseException as error:
        if "nexpected type annotation" in str(error) or "nsupported" in str(error):
            first = str(error).splitlines()[0]
            raise PluginError(
                f"option {path} has a type that a config cannot hold: {first}"
            ) from error
        raise ConfigError(_wrong_type(path, node, inner)) from error
    # NaN passes every check of the form ``if value < 0``.
    if any(isinstance(one, float) and one != one for one in _entries(found)):
        raise ConfigError(_wrong_type(path, node, inner))
    return found


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


@cache
def _holder(hint: Any) -> type[Any]:
    """A structured config of one field, so that an error is of that field alone."""
    return make_dataclass("Value", [("value", hint)])


def field_types(cls: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields, names resolved. Raises PluginError."""
    try:
        return typing.get_type_hints(cls)
    except Exception as error:
        raise PluginError(
            f"types of {cls.__module__}.{cls.__qualname__} cannot be resolved: {error}"
        ) from error


def default_tree(cls: type[Any], source: str) -> Tree:
    """The defaults of a dataclass as a tree; fields without one are left out."""
    tree: Tree = {}
    for one in fields(cls):
        if not one.init or _is_required(one):
            continue
        value = one.default
        if one.default_factory is not MISSING:
            value = one.default_factory()
        if is_dataclass(value):
            tree[one.name] = default_tree(type(value), source)
        else:
            tree[one.name] = Leaf(list(value) if isinstance(value, tuple) else value, source)
    return tree


def describe_type(hint: Any) -> str:
    """A type as a user would say it."""
    inner, optional = _without_none(hint)
    suffix = " or null" if optional else ""
    arguments = get_args(inner)
    if get_origin(inner) is Literal:
        return f"one of {', '.join(str(a) for a in arguments)}{suffix}"
    if get_origin(inner) is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} {_PLURAL.get(arguments[0], 'values')}{suffix}"
    if get_origin(inner) in (tuple, list):
        return f"a list of {_PLURAL.get(arguments[0], 'values')}{suffix}"
    if get_origin(inner) is dict:
        return f"a mapping{suffix}"
    if get_origin(inner) in (Union, types.UnionType):
        return " or ".join(describe_type(a) for a in arguments) + suffix
    return _NAMES.get(inner, getattr(inner, "__name__", str(inner))) + suffix


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Any: "any value",
}
_PLURAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    rest = tuple(a for a in get_args(hint) if a is not type(None))
    return (rest[0] if len(rest) == 1 else Union[rest]), len(rest) < len(get_args(hint))  # noqa: UP007


def _is_required(one: Field[Any]) -> bool:
    return one.init and one.default is MISSING and one.default_factory is MISSING


def _section(node: Tree | Leaf, path: str) -> Tree:
    if isinstance(node, Leaf):
        raise ConfigError(
            f"{path} = {node.value!r} ({node.source}): expected a section with keys below it"
        )
    return node


def _wrong_type(path: str, node: Tree | Leaf, hint: Any) -> str:
    expected = describe_type(hint)
    if get_origin(hint) is dict and get_args(hint):
        values = _PLURAL.get(get_args(hint)[1], "values")
        return f"{path} = {plain(node)!r} ({first_source(node)}): expected a mapping to {values}"
    if not isinstance(node, Leaf):
        return f"{path} has keys below it ({first_source(node)}): expected {expected}"
    return f"{path} = {_shown(node)} ({node.source}): expected {expected}"


def _shown(node: Leaf) -> str:
    if node.value is None:
        return "null"
    return f"'{node.text}'" if node.text is not None else repr(node.value)


def first_source(node: Tree | Leaf) -> str:
    """Where the first value of a node stood."""
    while not isinstance(node, Leaf):
        if not node:
            return "empty section"
        node = next(iter(node.values()))
    return node.source


def _unknown_key(path: str, key: str, node: Tree | Leaf, known: list[str]) -> str:
    name = f"{path}.{key}" if path else key
    close = nearest(key, known)
    hint = f" Did you mean '{path + '.' if path else ''}{close}'?" if close else ""
    section = f" {path} has: {', '.join(known) or 'no options'}." if path else ""
    return f"unknown key '{name}' ({first_source(node)}).{hint}{section}"


def _range_message(path: str, tree: Tree, message: str, known: list[str]) -> str:
    """Put section and source before a range error, whose text names its field."""
    words = message.replace(",", " ").replace("=", " ").split()
    named = [word for word in words if word in known]
    given = [n for n in named if n in tree and not first_source(tree[n]).startswith("default of")]
    name = (given or named or [""])[0]
    source = f" ({first_source(tree[name])})" if name in tree else ""
    if words and words[0] == name:
        return f"{path}.{message}{source}" if path else f"{message}{source}"
    return f"{path}: {message}{source}" if path else f"{message}{source}"

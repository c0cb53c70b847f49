"""From a class to its tools: JSON schemas out of type hints and Google-style docstrings."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from rlframe.errors import PluginError

__all__ = ["RESERVED", "fitted", "tools_of"]

RESERVED = frozenset({"reset", "step", "reward", "turn_reward", "run", "close", "done"})
"""Public names of a class that are no tools."""

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_SECTION = re.compile(r"^\s*(Args|Arguments|Returns?|Raises|Yields?|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def tools_of(cls: type[Any]) -> list[dict[str, Any]]:
    """The tools of a class in OpenAI's form, in the order in which they are written.

    Raises PluginError naming the method and the parameter without a type, or with one that JSON
    has not.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if not name.startswith("_") and name not in RESERVED and _is_method(value):
                found[name] = value
    return [_tool(cls, name, value) for name, value in found.items()]


def fitted(arguments: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, Any] | str:
    """The arguments of a call as the tool takes them, or what is wrong with them.

    A number that came as text becomes a number, where the schema wants one.
    """
    parameters = tool["function"]["parameters"]
    known, name = parameters["properties"], tool["function"]["name"]
    odd = [key for key in arguments if key not in known]
    if odd:
        return f"{name} has no parameter '{odd[0]}': it takes {', '.join(known) or 'none'}"
    missing = [key for key in parameters["required"] if key not in arguments]
    if missing:
        return f"{name} needs the parameter '{missing[0]}'"
    out: dict[str, Any] = {}
    for key, value in arguments.items():
        converted = _converted(value, known[key])
        if not _is_a(converted, known[key]):
            wanted = json.dumps(known[key].get("enum", known[key].get("type", "value")))
            return f"{name}: '{key}' must be {wanted}, not {json.dumps(value)[:80]}"
        out[key] = converted
    return out


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)


def _tool(cls: type[Any], name: str, value: Any) -> dict[str, Any]:
    where = f"{cls.__name__}.{name}"
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise PluginError(f"types of the tool {where} cannot be resolved: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    if not isinstance(value, staticmethod):
        parameters = parameters[1:]
    text, described = _docstring(inspect.getdoc(function) or "")
    properties, required = {}, []
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise PluginError(f"the tool {where}: parameter '{one.name}' cannot be given by name")
        if one.name not in hints:
            raise PluginError(
                f"the tool {where}: parameter '{one.name}' has no type: write one (str, int, "
                "list[str], ...), or begin the method's name with _ if it is no tool"
            )
        schema = _schema(hints[one.name], f"{where}, parameter '{one.name}'")
        if one.name in described:
            schema["description"] = described[one.name]
        if one.default is one.empty:
            required.append(one.name)
        properties[one.name] = schema
    whole = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": whole},
    }


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first section, and the entries of ``Args``."""
    lines, section, about = text.splitlines(), "", list[str]()
    described: dict[str, str] = {}
    last, indent = "", 0
    for line in lines:
        heading = _SECTION.match(line)
        if heading is not None:
            section = heading[1]
        elif not section:
            about.append(line)
        elif section.startswith("Arg") and line.strip():
            depth = len(line) - len(line.lstrip())
            entry = _ENTRY.match(line)
            if entry is not None and (not last or depth <= indent):
                last, indent = entry[1], depth
                described[last] = entry[2].strip()
            elif last:
                described[last] = f"{described[last]} {line.strip()}".strip()
    return "\n".join(about).strip(), described


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type."""
    if hint is Any:
        return {}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, where) for one in arguments]}
    if hint in (list, tuple) or origin in (list, tuple, collections.abc.Sequence):
        items = _schema(arguments[0], where) if arguments else {}
        return {"type": "array", "items": items}
    if hint is dict or origin in (dict, collections.abc.Mapping):
        values = _schema(arguments[1], where) if len(arguments) == 2 else {}
        return {"type": "object", "additionalProperties": values}
    raise PluginError(
        f"the tool {where}: JSON has no type {getattr(hint, '__name__', hint)}: take str, int, "
        "float, bool, list, dict, Literal, an Enum, or a union of them"
    )


def _converted(value: Any, schema: Mapping[str, Any]) -> Any:
    """A text as the number or truth value that is wanted; everything else as it is."""
    wanted = schema.get("type")
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or wanted in (None, "string"):
        return value
    try:
        found = json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return value
    return found if _is_a(found, schema) else value


def _is_a(value: Any, schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_is_a(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    wanted = schema.get("type")
    if wanted == "array":
        items = schema.get("items", {})
        return isinstance(value, list) and all(_is_a(one, items) for one in value)
    if wanted == "object":
        values = schema.get("additionalProperties", {})
        return isinstance(value, dict) and all(_is_a(one, values) for one in value.values())
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        None: True,
        "string": isinstance(value, str),
        "integer": whole,
        "number": whole or isinstance(value, float),
        "boolean": isinstance(value, bool),
        "null": value is None,
    }[wanted]

"""What every form has in common: JSON objects in a text, and calls in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.interfaces.tools import Piece, ToolCall, ToolSchema

__all__ = ["call_of", "json_at", "merged", "parameters_of", "piece_of", "typed_value"]

_DECODER = json.JSONDecoder()
_ARGUMENTS = ("arguments", "parameters")


def json_at(text: str, start: int) -> tuple[Any, int] | str:
    """The JSON value that begins at ``start`` after spaces and where it ends, or what is wrong."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError) as error:
        return f"no JSON: {error}"


def call_of(value: Any) -> ToolCall | str:
    """The call that a JSON value is, or what is wrong with it."""
    if not isinstance(value, Mapping):
        return "a call is an object with 'name' and 'arguments'"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return "the call has no 'name'"
    given = [value[key] for key in _ARGUMENTS if key in value]
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (json.JSONDecodeError, RecursionError) as error:
            return f"the arguments are no JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return "the arguments are no object"
    return ToolCall(name, {str(key): one for key, one in arguments.items()})


def piece_of(text: str, found: ToolCall | str) -> Piece:
    """The piece of a text that is a call, or should have been one."""
    return Piece(text, call=found) if isinstance(found, ToolCall) else Piece(text, fault=found)


def merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Without empty texts, plain neighbours joined."""
    out: list[Piece] = []
    for piece in pieces:
        plain = piece.call is None and not piece.fault
        if plain and not piece.text:
            continue
        if plain and out and out[-1].call is None and not out[-1].fault:
            out[-1] = Piece(out[-1].text + piece.text)
        else:
            out.append(piece)
    return tuple(out)


def parameters_of(name: str, tools: Sequence[ToolSchema]) -> dict[str, Mapping[str, Any]]:
    """The parameters of a tool with their schemas, in order; empty for a tool that is not there."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return dict(function.get("parameters", {}).get("properties", {}))
    return {}


def typed_value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """An argument that was written as bare text: as it stands for a string, else as JSON."""
    if schema is not None and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text

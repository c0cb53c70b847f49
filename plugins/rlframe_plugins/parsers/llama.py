"""Llama 3's calls: bare JSON, the python tag, and lists of Python calls."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rlframe.interfaces.tools import Parsed, Piece, ToolCall, ToolParser, ToolSchema
from rlframe_plugins.parsers.common import call_of, json_at, merged, parameters_of, piece_of

__all__ = ["LlamaParser"]

_TAG = "<|python_tag|>"


class LlamaParser(ToolParser):
    """``{"name": .., "parameters": ..}`` (several with ``;``), also after ``<|python_tag|>``.

    Also ``[f(a=1), g(2)]``, and ``f.call(a=1)`` after the tag. Without the tag a message is a call
    only if it begins like one. Positional arguments take the names of the tool's parameters.
    """

    marks: ClassVar[tuple[str, ...]] = ("<|start_header_id|>", '"parameters"')
    example: ClassVar[str] = 'A call is written {"name": "NAME", "parameters": {"KEY": "VALUE"}}.'

    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> Parsed:
        """See :class:`ToolParser`."""
        before, tag, body = text.partition(_TAG)
        if not tag:
            before, body = "", text
        start = body.lstrip()[:1]
        pieces = [Piece(before)]
        if start == "{":
            pieces += _objects(tag, body)
        elif tag or (start == "[" and _looks_called(body)):
            pieces += _python(tag + body, body, tools)
        else:
            pieces.append(Piece(tag + body))
        return Parsed(merged(pieces))


def _objects(tag: str, body: str) -> list[Piece]:
    """JSON objects one after the other, a semicolon or spaces between."""
    pieces, at, lead = list[Piece](), 0, tag
    while (rest := body[at:]).strip(" \n\t;"):
        skip = len(rest) - len(rest.lstrip(" \n\t;"))
        found = json_at(body, at + skip)
        if isinstance(found, str) or body[at + skip] != "{":
            wrong = found if isinstance(found, str) else "a call is an object"
            # What follows a call without being one is plain text.
            pieces.append(Piece(lead + rest, fault="" if pieces else wrong))
            return pieces
        value, end = found
        pieces.append(piece_of(lead + body[at:end], call_of(value)))
        at, lead = end, ""
    return [*pieces, Piece(lead + body[at:])]


def _looks_called(body: str) -> bool:
    head = body.lstrip()[1:].lstrip()
    name, parenthesis, _ = head.partition("(")
    return bool(parenthesis) and name.replace(".", "_").isidentifier()


def _python(text: str, body: str, tools: Sequence[ToolSchema]) -> list[Piece]:
    """Calls in Python's syntax; the text goes with the first of them."""
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [_call(node, tools) for node in nodes]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        return [Piece(text, fault=f"no call in Python's syntax: {error}")]
    if not calls:
        return [Piece(text)]
    return [Piece(text, call=calls[0]), *(Piece("", call=call) for call in calls[1:])]


def _call(node: ast.AST, tools: Sequence[ToolSchema]) -> ToolCall:
    """Raises ValueError for what is no call of constants."""
    if not isinstance(node, ast.Call):
        raise ValueError("expected NAME(KEY=VALUE)")
    name = ast.unparse(node.func).removesuffix(".call")
    names = list(parameters_of(name, tools))
    if len(node.args) > len(names):
        raise ValueError(f"{name} takes {len(names)} arguments, not {len(node.args)}")
    values: dict[str, Any] = {
        key: ast.literal_eval(value) for key, value in zip(names, node.args, strict=False)
    }
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise ValueError(f"argument {keyword.arg or '**'} of {name} is given twice or unnamed")
        values[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(name, json.loads(json.dumps(values)))

"""Calls as bare JSON anywhere in a message, also in code fences and lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlframe.interfaces.tools import Parsed, Piece, ToolParser, ToolSchema
from rlframe_plugins.parsers.common import call_of, json_at, merged, piece_of

__all__ = ["JsonParser"]

_START = re.compile(r"[\[{]")
_BROKEN = re.compile(r'\[?\s*\{\s*"name"\s*:')
_MOST_FAILED = 64
"""Brackets that begin no JSON after which the rest of a message is plain text."""


class JsonParser(ToolParser):
    """An object with ``name`` and ``arguments`` (or ``parameters``), or a list of such objects."""

    example: ClassVar[str] = 'A call is written {"name": "NAME", "arguments": {"KEY": "VALUE"}}.'

    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> Parsed:
        """See :class:`ToolParser`."""
        pieces, done, at, failed = [], 0, 0, 0
        while failed < _MOST_FAILED and (opening := _START.search(text, at)) is not None:
            start = opening.start()
            found = json_at(text, start)
            if isinstance(found, str):
                failed += 1
                if _BROKEN.match(text, start):
                    pieces += [Piece(text[done:start]), Piece(text[start:], fault=found)]
                    return Parsed(merged(pieces))
                at = start + 1
                continue
            value, at = found
            calls = value if isinstance(value, list) else [value]
            if calls and all(_is_call(one) for one in calls):
                pieces.append(Piece(text[done:start]))
                pieces.append(piece_of(text[start:at], call_of(calls[0])))
                pieces += [piece_of("", call_of(one)) for one in calls[1:]]
                done = at
        pieces.append(Piece(text[done:]))
        return Parsed(merged(pieces))


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and "name" in value
        and bool({"arguments", "parameters"} & value.keys())
    )

"""``<tool_call>{"name": .., "arguments": ..}</tool_call>``: Hermes, and many models after it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from rlframe.interfaces.tools import Parsed, Piece, ToolCall, ToolParser, ToolSchema
from rlframe_plugins.parsers.common import call_of, json_at, merged, piece_of

__all__ = ["OPEN", "HermesParser"]

OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_END = re.compile(rf"\s*{_CLOSE}")


class HermesParser(ToolParser):
    """JSON between tags. A last call whose closing tag is lacking counts when its JSON is whole."""

    marks: ClassVar[tuple[str, ...]] = (OPEN, '"name"')
    example: ClassVar[str] = (
        f'A call is written {OPEN}{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}{_CLOSE}.'
    )

    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> Parsed:
        """See :class:`ToolParser`."""
        pieces, at = [], 0
        while (start := text.find(OPEN, at)) >= 0:
            pieces.append(Piece(text[at:start]))
            found, at = self.body(text, start + len(OPEN), tools)
            pieces.append(piece_of(text[start:at], found))
        pieces.append(Piece(text[at:]))
        return Parsed(merged(pieces))

    def body(
        self, text: str, start: int, tools: Sequence[ToolSchema]
    ) -> tuple[ToolCall | str, int]:
        """The call after an opening tag, or what is wrong with it, and where it ends."""
        found = json_at(text, start)
        if isinstance(found, str):
            return found, end_of(text, start)
        value, end = found
        closing = _END.match(text, end)
        if closing is None and text[end:].strip():
            return f"text follows the JSON before {_CLOSE}", end_of(text, end)
        return call_of(value), closing.end() if closing else len(text)


def end_of(text: str, start: int) -> int:
    """Where a call that cannot be read ends: after its closing tag, or before the next one."""
    closing, following = text.find(_CLOSE, start), text.find(OPEN, start)
    if closing >= 0 and (following < 0 or closing < following):
        return closing + len(_CLOSE)
    return following if following >= 0 else len(text)

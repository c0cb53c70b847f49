"""Qwen's calls: the tags of Hermes with JSON in them, or Qwen3-Coder's functions in XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rlframe.interfaces.tools import ToolCall, ToolSchema
from rlframe_plugins.parsers.common import parameters_of, typed_value
from rlframe_plugins.parsers.hermes import OPEN, HermesParser, end_of

__all__ = ["QwenParser"]

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)\s*>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)\s*>")
_AFTER_VALUE = re.compile(r"</parameter>|(?=<parameter=)|(?=</function>)")
_END = re.compile(r"\s*</function>\s*(?:</tool_call>|$)")


class QwenParser(HermesParser):
    """``<function=NAME><parameter=KEY>VALUE</parameter></function>``, or JSON, between the tags."""

    marks: ClassVar[tuple[str, ...]] = (OPEN, "<function=", "<parameter=")
    example: ClassVar[str] = (
        f"A call is written {OPEN}\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
        "</function>\n</tool_call>."
    )

    def body(
        self, text: str, start: int, tools: Sequence[ToolSchema]
    ) -> tuple[ToolCall | str, int]:
        """See :class:`HermesParser`."""
        opening = _FUNCTION.match(text, start)
        if opening is None:
            return super().body(text, start, tools)
        name, at = opening[1], opening.end()
        schemas = parameters_of(name, tools)
        arguments: dict[str, Any] = {}
        while (key := _PARAMETER.match(text, at)) is not None:
            stop = _AFTER_VALUE.search(text, key.end())
            if stop is None:
                return f"the parameter '{key[1]}' has no end", end_of(text, start)
            value = text[key.end() : stop.start()]
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key[1]] = typed_value(value, schemas.get(key[1]))
            at = stop.end()
        closing = _END.match(text, at)
        if closing is None:
            return f"the function '{name}' has no </function></tool_call>", end_of(text, start)
        return ToolCall(name, arguments), closing.end()

"""Tool calls in what a model writes: parsers find them, whatever the model's own form of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = ["Parsed", "Piece", "ToolCall", "ToolParser", "ToolSchema"]

ToolSchema = Mapping[str, Any]
"""A tool as OpenAI writes it: ``{"type": "function", "function": {"name", "parameters", ...}}``."""


@dataclass(frozen=True)
class ToolCall:
    """A call: the tool's name and its arguments by name, as JSON values."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """A stretch of the text: plain, a call, or a call that cannot be read and why."""

    text: str
    call: ToolCall | None = None
    fault: str = ""


@dataclass(frozen=True)
class Parsed:
    """A message in pieces, whose texts together are the message: nothing is lost."""

    pieces: tuple[Piece, ...]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in order."""
        return tuple(piece.call for piece in self.pieces if piece.call is not None)

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with calls that cannot be read."""
        return tuple(piece.fault for piece in self.pieces if piece.fault)

    @property
    def content(self) -> str:
        """The text beside the calls that could be read."""
        return "".join(piece.text for piece in self.pieces if piece.call is None).strip()

    @property
    def text(self) -> str:
        """The message as it was written."""
        return "".join(piece.text for piece in self.pieces)


class ToolParser(ABC):
    """Finds the calls in one message of a model; knows nothing of templates and tokens."""

    marks: ClassVar[tuple[str, ...]] = ()
    """Texts that a chat template for this form has all of; the parser with the longest wins."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> Parsed:
        """The message in pieces; never raises for odd text, and loses none of it.

        ``tools`` give the names of parameters where a form writes them by position.
        """

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """What a system message tells of the tools, for a chat template that does not."""
        import json

        lines = "\n".join(json.dumps(tool.get("function", tool)) for tool in tools)
        return f"You may call these functions:\n{lines}\n{self.example}"

    example: ClassVar[str] = ""
    """One sentence that shows how a call is written."""

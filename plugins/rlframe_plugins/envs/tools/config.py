"""Options of environments that are plain classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlframe.config import check_range

__all__ = ["ToolsConfig"]


@dataclass(frozen=True)
class ToolsConfig:
    """Limits of an episode, and how its messages are written."""

    max_turns: int = 8
    """Messages of the model in an episode at most, at least 1."""
    max_tokens: int = 0
    """Longest context, tokens of prompt, turns and tools' answers; 0 takes the tokenizer's."""
    tool_timeout_s: float = 10.0
    """Longest time of one call of a tool, seconds, above 0; the model is told of a longer one."""
    tool_total_s: float = 120.0
    """Longest time of all calls of an episode, seconds, above 0."""
    max_tool_output: int = 8192
    """Characters of a tool's answer, at least 1; a longer one is cut and says so."""
    run_timeout_s: float = 600.0
    """Longest time of a program of one's own (``run``), seconds, above 0."""
    processes: int = 128
    """Environments at once, each in its own process, at least 1; more episodes wait."""
    retries: int = 1
    """Times that an episode begins anew when its process died, at least 0."""
    tool_parser: str = "auto"
    """Form of tool calls: a tool-parser's name, file.py:Class, or auto, by the chat template."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How messages are written: chat template, plain one after the other, or what there is."""
    describe: bool = True
    """Tell the model of the tools: by the chat template, or a system message where it does not."""
    on_rewrite: Literal["segment", "error"] = "segment"
    """Where the template writes history otherwise: a new training row, or an error."""
    on_error: Literal["fail", "zero", "skip"] = "fail"
    """Where reset, step, reward or run raise: end the run, reward 0, or leave the episode out."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        for name in ("max_turns", "max_tool_output", "processes"):
            check_range(self, name, 1)
        for name in ("max_tokens", "retries"):
            check_range(self, name, 0)
        for name in ("tool_timeout_s", "tool_total_s", "run_timeout_s"):
            check_range(self, name, above=0)
        if not self.tool_parser:
            raise ValueError("tool_parser must name a tool-parser, or auto")

"""Which parser fits a model: by name, or by what its chat template shows of calls."""

from __future__ import annotations

from typing import Any

from rlframe.host.host import current_host
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import resolve
from rlframe.interfaces.tools import ToolParser

__all__ = ["choose_parser"]

_KIND, _FALLBACK = "tool-parser", "json"


def choose_parser(name: str, template: Any) -> ToolParser:
    """The parser ``name``, or for ``auto`` the one whose marks the template has, else plain JSON.

    ``name`` may be ``file.py:Class``. Raises PluginError.
    """
    host = current_host()
    known = host.components(_KIND)
    if name != "auto":
        return _made(name)
    text = _template_text(template)
    best, length = _FALLBACK, 0
    for one in sorted(known):
        if missing_hint(known[one]):
            continue
        marks = resolve(host, _KIND, one).value.marks
        fits = bool(marks) and all(mark in text for mark in marks)
        if fits and sum(map(len, marks)) > length:
            best, length = one, sum(map(len, marks))
    return _made(best)


def _made(name: str) -> ToolParser:
    cls: type[ToolParser] = resolve(current_host(), _KIND, name).value
    return cls()


def _template_text(template: Any) -> str:
    """A chat template as text; a tokenizer may have several, by name."""
    if isinstance(template, dict):
        return str(template.get("tool_use", template.get("default", "")))
    return str(template or "")

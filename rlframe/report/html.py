"""Pieces of a page: whatever a user, a model or a config wrote goes through these, escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["embed", "figure", "table", "text"]


def text(value: object) -> str:
    """Anything as text of a page or of an attribute in double quotes."""
    return escape(str(value), quote=True)


def embed(value: Any, name: str = "") -> str:
    """A block of JSON that scripts of the page find by ``name`` and that no text can end.

    ``<``, ``>`` and ``&`` are written as escapes of JSON. Raises ValueError for NaN and infinity.
    """
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    label = f' id="{text(name)}"' if name else ""
    return f'<script type="application/json"{label}>{body}</script>'


def figure(traces: Sequence[Mapping[str, Any]], title: str, *, unit: str = "", x: str = "") -> str:
    """A chart by Plotly: ``traces`` as Plotly takes them; colours of text follow the theme."""
    layout = {"title": {"text": title}, "yaxis": {"title": unit}, "xaxis": {"title": x}}
    return f'<div class="plot">{embed({"traces": list(traces), "layout": layout})}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: bool = False) -> str:
    """A table of texts; ``numbers`` sets all but the first column to the right."""
    kind = ' class="numbers"' if numbers else ""
    first = "".join(f"<th>{text(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    body = f"<thead><tr>{first}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table{kind}>{body}</table></div>'

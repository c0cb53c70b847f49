"""A timeline as SVG, and as one HTML page without anything from elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

from rlframe.timeline.analysis import Report
from rlframe.timeline.file import Written

__all__ = ["gantt", "page"]

_COLOURS = (
    "#4c78a8", "#e45756", "#54a24b", "#f58518", "#b279a2", "#72b7b2",
    "#eeca3b", "#9d755d", "#ff9da6", "#7f7f7f", "#1f9e89", "#8c6bb1",
)  # fmt: skip
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 1200, 190, 70, 22, 34
_MOST_ROWS = 80
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.3em} svg{width:100%;height:auto} table{border-collapse:collapse}
td,th{padding:.2em .9em;text-align:right;border-bottom:1px solid #ddd}
td:first-child{text-align:left}
"""
_ZOOM = """
const g=document.querySelector('svg'),w=g.viewBox.baseVal,full=w.width;
g.addEventListener('wheel',e=>{e.preventDefault();const x=w.x+w.width*e.offsetX/g.clientWidth;
const k=e.deltaY>0?1.25:.8;w.width=Math.min(full,w.width*k);
w.x=Math.max(0,Math.min(full-w.width,x-w.width*e.offsetX/g.clientWidth));
g.setAttribute('preserveAspectRatio','none');},{passive:false});
"""

Row = tuple[str, str, str]


def gantt(spans: Sequence[Written], report: Report) -> str:
    """One row for each role of a lane; pieces of the critical path have a dark line below.

    Pieces that are too short to be seen are joined to their neighbours of the same stage.
    """
    rows: dict[Row, list[Written]] = defaultdict(list)
    for span in spans:
        rows[span.pool, span.lane, span.role].append(span)
    names = sorted(rows)[:_MOST_ROWS]
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    scale = (_WIDTH - _LEFT - _RIGHT) / ((end - begin) or 1.0)
    colours = _colours(spans)
    on_path = set(report.path)
    parts = [_axis(end - begin, scale, len(names))]
    for place, row in enumerate(names):
        y = _TOP + place * _ROW
        pool, lane, role = row
        parts.append(_text(0, y + 15, lane if lane == role else f"{lane} {role}"))
        for piece in _pieces(rows[row], 0.5 / scale):
            x, width = _LEFT + (piece[0].start - begin) * scale, _reach(piece) * scale
            parts.append(_bar(x, y, width, colours[piece[0].stage], _words(piece, begin)))
            if any(span in on_path for span in piece):
                parts.append(_bar(x, y + _ROW - 5, width, "#222", "", 2))
        if _first_of_pool(names, place):
            idle = report.pools[pool].idle
            parts.append(_text(_WIDTH - _RIGHT + 6, y + 15, f"idle {idle:.0%}"))
    if len(rows) > len(names):
        more = f"and {len(rows) - len(names)} rows more"
        parts.append(_text(_LEFT, _TOP + len(names) * _ROW + 14, more))
    height = _TOP + len(names) * _ROW + 22 + _ROW
    parts.append(_legend(colours, height - 8))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    style = "<style>text{font:11px system-ui,sans-serif;fill:#222}</style>"
    return f"{head}{style}{''.join(parts)}</svg>"


def page(title: str, spans: Sequence[Written], report: Report, text: str) -> str:
    """The picture, the figures, and the same in words; the wheel zooms."""
    head = "<tr><th>pool</th><th>lanes</th><th>busy s</th><th>idle s</th><th>idle</th></tr>"
    lines = "".join(
        f"<tr><td>{escape(name)}</td><td>{use.lanes}</td><td>{use.busy_s:.2f}</td>"
        f"<td>{use.idle_s:.2f}</td><td>{use.idle:.0%}</td></tr>"
        for name, use in report.pools.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{gantt(spans, report)}"
        f"<table>{head}{lines}</table><pre>{escape(text)}</pre>"
        f"<script>{_ZOOM}</script></html>\n"
    )


def _pieces(spans: Iterable[Written], shortest_s: float) -> list[list[Written]]:
    """Runs of spans of one stage between which nothing could be seen."""
    out: list[list[Written]] = []
    for span in sorted(spans, key=lambda s: s.start):
        last = out[-1][-1] if out else None
        if (
            last is not None
            and last.stage == span.stage
            and span.end - out[-1][0].start - _reach(out[-1]) < shortest_s
        ):
            out[-1].append(span)
        else:
            out.append([span])
    return out


def _reach(piece: Sequence[Written]) -> float:
    return max(span.end for span in piece) - piece[0].start


def _words(piece: Sequence[Written], begin: float) -> str:
    first, tokens = piece[0], sum(span.tokens for span in piece)
    many = f"{len(piece)} x " if len(piece) > 1 else ""
    return (
        f"{many}{first.stage} of {first.role} on {first.lane}: {first.start - begin:.3f} s, "
        f"{_reach(piece):.3f} s long; step {first.step}, version {first.version}, {tokens} tokens"
    )


def _first_of_pool(names: Sequence[Row], place: int) -> bool:
    return place == 0 or names[place - 1][0] != names[place][0]


def _colours(spans: Iterable[Written]) -> dict[str, str]:
    stages = dict.fromkeys(span.stage for span in spans)
    return {stage: _COLOURS[place % len(_COLOURS)] for place, stage in enumerate(stages)}


def _axis(seconds: float, scale: float, rows: int) -> str:
    """A line every so many seconds, at most ten."""
    step = next(
        (n * 10**e for e in range(-3, 7) for n in (1, 2, 5) if seconds / (n * 10**e) <= 10), 1e7
    )
    ticks = [step * n for n in range(int(seconds / step) + 1)]
    bottom = _TOP + rows * _ROW
    return "".join(
        f'<line x1="{_LEFT + t * scale:.1f}" y1="{_TOP - 6}" x2="{_LEFT + t * scale:.1f}" '
        f'y2="{bottom}" stroke="#ddd"/>' + _text(_LEFT + t * scale, _TOP - 10, f"{t:g} s")
        for t in ticks
    )


def _legend(colours: dict[str, str], y: float) -> str:
    parts, x = [], float(_LEFT)
    for stage, colour in colours.items():
        parts.append(_bar(x, y - 9, 9, colour, "", 9) + _text(x + 12, y, stage))
        x += 24 + 6.2 * len(stage)
    return "".join(parts)


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _bar(x: float, y: float, width: float, fill: str, title: str, height: float = _ROW - 6) -> str:
    hover = f"<title>{escape(title)}</title>" if title else ""
    size = f'x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.4):.2f}" height="{height:g}"'
    return f'<rect {size} fill="{fill}">{hover}</rect>'

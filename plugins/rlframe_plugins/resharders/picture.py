"""A transition as SVG: what each rank holds in training and in generation, and who sends what."""

from __future__ import annotations

from html import escape

from rlframe.calling.protocol import Mesh
from rlframe_plugins.resharders.report import Transition

__all__ = ["transition_svg"]

_ROW, _LEFT, _BAR, _GAP, _TOP = 26, 90, 260, 150, 60
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
_MOST_RANKS = 64


def transition_svg(one: Transition, mesh: Mesh) -> str:
    """A picture of the first 64 ranks; colours tell micro-DP groups, bars the share of weights."""
    ranks = min(mesh.size, _MOST_RANKS)
    width, height = _LEFT + 2 * _BAR + _GAP + 30, _TOP + ranks * _ROW + 40
    right = _LEFT + _BAR + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui,sans-serif" font-size="11">',
        _text(_LEFT, 24, f"training {mesh.pp}-{mesh.tp}-{mesh.dp}"),
        _text(right, 24, f"generation {mesh.pg}-{mesh.tg}-{mesh.dg}-{mesh.dp} ({one.name})"),
        _text(_LEFT, 42, "share of the weights on each rank; lines are transfers"),
    ]
    for rank in range(ranks):
        y = _TOP + rank * _ROW
        colour = _colour(mesh, rank)
        parts.append(_text(10, y + 14, f"rank {rank}"))
        parts += _bar(_LEFT, y, one.held(one.plan.source, rank) / one.total, colour)
        parts += _bar(right, y, one.held(one.plan.target, rank) / one.total, colour)
    for (source, target), count in one.sends().items():
        if source < ranks and target < ranks:
            parts.append(_line(source, target, right, _colour(mesh, source), count))
    return "\n".join([*parts, "</svg>\n"])


def _colour(mesh: Mesh, rank: int) -> str:
    group = (mesh.dp_rank(rank) * mesh.pg + mesh.gpp_rank(rank)) * mesh.tg + mesh.gtp_rank(rank)
    return _COLOURS[group % len(_COLOURS)]


def _bar(x: float, y: float, share: float, colour: str) -> list[str]:
    frame = f'x="{x}" y="{y}" height="16" rx="2"'
    return [
        f'<rect {frame} width="{_BAR}" fill="#f2f2f2" stroke="#999" stroke-width=".5"/>',
        f'<rect {frame} width="{share * _BAR:.1f}" fill="{colour}"/>',
        _text(x + 4, y + 12, f"{share:.1%}"),
    ]


def _line(source: int, target: int, right: int, colour: str, count: int) -> str:
    y1, y2 = (_TOP + rank * _ROW + 8 for rank in (source, target))
    hover = f"<title>{source} to {target}: {count / 2**20:.2f} MiB</title>"
    where = f'x1="{_LEFT + _BAR}" y1="{y1}" x2="{right}" y2="{y2}"'
    return f'<line {where} stroke="{colour}" stroke-width="1.5" opacity=".7">{hover}</line>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#222">{escape(words)}</text>'

"""Curves in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["plot", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell by row (from the top) and column."""


def sparkline(values: Sequence[float], width: int) -> str:
    """One line of at most ``width`` blocks; values that are not finite are blanks."""
    points = _binned(values, width)
    low, high = _range(points)
    top = len(_BLOCKS) - 1
    return "".join(
        " " if math.isnan(p) else _BLOCKS[round((p - low) / (high - low) * top)] for p in points
    )


def plot(
    values: Sequence[float], width: int = 60, height: int = 6, *, unicode: bool = True
) -> list[str]:
    """Lines of a curve: ``height`` rows of at most ``width`` characters and an axis of numbers.

    Braille dots (2 x 4 a character), or stars where ``unicode`` is False. Empty for no finite
    value.
    """
    across, down = (2, 4) if unicode else (1, 1)
    if not any(math.isfinite(v) for v in values):
        return []
    low, high = _range([v for v in values if math.isfinite(v)])
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    margin = max(map(len, labels.values()))
    columns = max(width - margin - 2, 4)
    cells = [[0] * columns for _ in range(height)]
    rows = height * down
    for x, y in _line(_stretched(values, columns * across), low, high, rows):
        bit = _DOTS[y % down][x % across] if unicode else 1
        cells[y // down][x // across] |= bit
    edge = "┤" if unicode else "|"
    return [
        f"{labels.get(number, ''):>{margin}} {edge}{_row_text(row, unicode)}".rstrip()
        for number, row in enumerate(cells)
    ]


def _row_text(row: Sequence[int], unicode: bool) -> str:
    if unicode:
        return "".join(chr(0x2800 + bits) if bits else " " for bits in row)
    return "".join("*" if bits else " " for bits in row)


def _line(points: Sequence[float], low: float, high: float, rows: int) -> list[tuple[int, int]]:
    """Dots (x, y from the top) of the curve, gaps between neighbours filled upright."""
    dots: list[tuple[int, int]] = []
    before: int | None = None
    for x, value in enumerate(points):
        if math.isnan(value):
            before = None
            continue
        y = round((high - value) / (high - low) * (rows - 1))
        start = y if before is None else before + (1 if y > before else -1 if y < before else 0)
        dots += [(x, one) for one in range(min(start, y), max(start, y) + 1)]
        before = y
    return dots


def _stretched(values: Sequence[float], width: int) -> list[float]:
    """Exactly ``width`` values: means of bins, or each value drawn out to several columns."""
    if len(values) >= width:
        return _binned(values, width)
    return [_clean(values[i * len(values) // width]) for i in range(width)]


def _binned(values: Sequence[float], width: int) -> list[float]:
    """At most ``width`` means of consecutive finite values; NaN for a bin without one."""
    count = min(len(values), width)
    bins = []
    for i in range(count):
        chunk = values[i * len(values) // count : (i + 1) * len(values) // count]
        finite = [v for v in chunk if math.isfinite(v)]
        bins.append(sum(finite) / len(finite) if finite else math.nan)
    return bins


def _clean(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest finite value, never equal."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low - 0.5, low + 0.5)

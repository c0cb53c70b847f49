"""Figures that a server shows at ``/metrics``, in the text form of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Metrics", "Shown", "samples"]

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Metrics:
    """What a kind of server calls its figures: our name by theirs.

    ``products`` are gauges that two of theirs give by multiplication.
    """

    counters: Mapping[str, str]
    gauges: Mapping[str, str]
    products: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def samples(text: str) -> dict[str, float]:
    """Sums over all series of each metric. An info's numeric labels count as ``NAME/LABEL``.

    What is no sample, or no number, is passed over.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        value = None if match is None else _number(match[3])
        if match is None or value is None:
            continue
        name = match[1]
        found[name] = found.get(name, 0.0) + value
        if name.endswith("_info"):
            for label, shown in _LABEL.findall(match[2] or ""):
                number = _number(shown)
                if number is not None:
                    found[f"{name}/{label}"] = found.get(f"{name}/{label}", 0.0) + number
    return found


class Shown:
    """One server's figures: counters never fall here, also where it is started again."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[str, float] = {}
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, float] = {}

    def take(self, text: str) -> None:
        """A reply of ``/metrics``."""
        found, named = samples(text), self._metrics
        for theirs, ours in named.counters.items():
            if theirs in found:
                before, now = self._last.get(theirs, 0.0), found[theirs]
                self.counters[ours] = self.counters.get(ours, 0.0) + (
                    now - before if now >= before else now
                )
                self._last[theirs] = now
        self.gauges = {o: found[t] for t, o in named.gauges.items() if t in found}
        for ours, (one, other) in named.products.items():
            if one in found and other in found:
                self.gauges[ours] = found[one] * found[other]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None

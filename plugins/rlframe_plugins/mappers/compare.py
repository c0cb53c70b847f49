"""Beside a run of ``mapper: auto``: the plan at its start, and at its end what was true."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rlframe_plugins.mappers.stages import STAGES, stage_seconds

__all__ = ["Watch", "on_end", "on_start", "on_step", "remember"]


@dataclass
class Watch:
    """A placed run: predicted seconds by stage, and those of every step."""

    config: Any
    text: str
    predicted: Mapping[str, float]
    measured: list[dict[str, float]] = field(default_factory=list)

    def table(self) -> str:
        """Predicted beside measured seconds (medians, the first step left out) by stage."""
        steps = self.measured[1:] or self.measured
        lines = ["mapper auto: seconds a step, predicted and measured"]
        for stage in STAGES:
            seconds = median(step[stage] for step in steps)
            lines.append(f"  {stage:<8}{self.predicted[stage]:>10.3f}{seconds:>10.3f}")
        return "\n".join(lines)


_WATCHES: list[Watch] = []


def remember(config: Any, text: str, predicted: Mapping[str, float]) -> None:
    """Keep the last plan that was made, until a run with this config starts."""
    _WATCHES[:] = [Watch(config, text, predicted)]


def _of(config: Any) -> Watch | None:
    return next((watch for watch in _WATCHES if watch.config is config), None)


def on_start(config: Any) -> None:
    """Say where the run's roles are and what a step should take."""
    watch = _of(config)
    if watch is None:
        _WATCHES.clear()
        return
    print(watch.text, file=sys.stderr)


def on_step(metrics: Mapping[str, float]) -> None:
    """Take the timings of a step."""
    if _WATCHES and "timing_s/step" in metrics:
        _WATCHES[0].measured.append(stage_seconds(metrics))


def on_end() -> None:
    """Say what was predicted and what was measured."""
    if _WATCHES and _WATCHES[0].measured:
        print(_WATCHES[0].table(), file=sys.stderr)
    _WATCHES.clear()

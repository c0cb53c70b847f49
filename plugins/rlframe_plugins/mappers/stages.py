"""The stages of a step, and the timings of a run by stage."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["STAGES", "stage_seconds"]

STAGES = ("collect", "prepare", "learn", "publish")
"""In order; each ends before the next begins."""


def stage_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds by stage from the ``timing_s/...`` metrics of a step."""
    seconds = dict.fromkeys(STAGES, 0.0)
    for key, value in metrics.items():
        name = key.removeprefix("timing_s/")
        if name == key or name == "step":
            continue
        if name == "gen":
            seconds["collect"] += value
        elif name == "update_weights":
            seconds["publish"] += value
        elif name.startswith("update_"):
            seconds["learn"] += value
        else:
            seconds["prepare"] += value
    return seconds

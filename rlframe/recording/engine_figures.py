"""What rollout engines say of themselves, as figures of a step.

Counters (``RolloutEngine.stats``) only grow: a step has their growth, summed over the replicas.
Gauges (``RolloutEngine.gauges``) say how things stand: they are summed over the replicas and
never subtracted. What an engine's router says of the servers behind it is under ``router/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlframe.interfaces.cluster import WorkerGroup

__all__ = ["EngineFigures", "growth", "joined"]

Figures = Mapping[str, float]
_COUNTED = ("requests", "preemptions", "prefix_hit_tokens", "prefill_tokens")


class EngineFigures:
    """Remembers the counters of each replica since the last :meth:`take`."""

    def __init__(self) -> None:
        self._before: list[Figures] = []

    def take(self, rollout: WorkerGroup | None) -> dict[str, float]:
        """``rollout/NAME`` of what the engines of a rollout have counted since, and hold now.

        ``tokens_per_s`` is the speed of a replica while it steps; ``running/mean`` and
        ``waiting/mean`` are over that time. A replica that is being started again says nothing.
        """
        if rollout is None:
            return {}
        answers: Sequence[Any] = rollout.call("stats").result()
        after = [dict(one or {}) for one in answers]
        before = self._before if len(self._before) == len(after) else [{}] * len(after)
        grown = [growth(old, new) for old, new in zip(before, after, strict=True)]
        self._before = [new or old for old, new in zip(before, after, strict=True)]
        gauges = joined([one or {} for one in rollout.call("gauges").result()])
        found = _of_step(joined(grown)) | gauges
        return {f"rollout/{name}": value for name, value in found.items()}


def growth(before: Figures, after: Figures) -> dict[str, float]:
    """What counters grew by. An engine that has started again counts from 0, so nothing falls."""
    if any(after.get(name, 0.0) < value for name, value in before.items()):
        before = {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def joined(parts: Iterable[Figures]) -> dict[str, float]:
    """Sums; of replicas that are up the fewest that a router sees, since routers share them."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name.endswith("replicas_up"):
                total[name] = min(total.get(name, value), value)
            else:
                total[name] = total.get(name, 0.0) + value
    return total


def _of_step(grown: Figures) -> dict[str, float]:
    """Counts as they are, and rates where there was something to divide by."""
    out = {n: v for n, v in grown.items() if n in _COUNTED or n.startswith("router/")}
    busy = grown.get("busy_s", 0.0)
    if busy > 0:
        out["busy_s"] = busy
        out["tokens_per_s"] = grown.get("response_tokens", 0.0) / busy
        for name in ("running", "waiting"):
            if f"{name}_s" in grown:
                out[f"{name}/mean"] = grown[f"{name}_s"] / busy
    out |= {n: v for n, v in grown.items() if n in ("prefill_s", "decode_s", "sample_s")}
    asked = grown.get("prefix_hit_tokens", 0.0) + grown.get("prefill_tokens", 0.0)
    if asked > 0:
        out["prefix_hit_ratio"] = grown["prefix_hit_tokens"] / asked
    return out

"""List scheduling of a plan's stages on its pools: the timeline of some steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Bar", "PoolLoad", "timeline"]


@dataclass(frozen=True)
class PoolLoad:
    """What a pool does in a step: seconds of its members by stage, in the order they take turns."""

    name: str
    collect: Mapping[str, float]
    prepare: Mapping[str, float]
    learn: Mapping[str, float]
    publish: float = 0.0

    @property
    def generates(self) -> bool:
        """Whether the rollout lives here."""
        return bool(self.collect)


@dataclass(frozen=True)
class Bar:
    """A unit at work on a pool, from ``start`` to ``end`` seconds."""

    pool: str
    unit: str
    stage: str
    step: int
    start: float
    end: float


class _Clock:
    """Free times of pools and the bars so far."""

    def __init__(self) -> None:
        self.free: dict[str, float] = {}
        self.bars: list[Bar] = []

    def turns(
        self, pool: str, stage: str, step: int, seconds: Mapping[str, float], ready: float
    ) -> float:
        """Members of a pool one after the other from ``ready`` on; the time when all are done."""
        now = max(ready, self.free.get(pool, 0.0))
        for unit, taken in seconds.items():
            if taken > 0:
                self.bars.append(Bar(pool, unit, stage, step, now, now + taken))
                now += taken
        self.free[pool] = now
        return now

    def together(self, pools: Sequence[str], step: int, seconds: float, ready: float) -> float:
        """A publish, which holds several pools at once."""
        now = max([ready, *(self.free.get(p, 0.0) for p in pools)])
        for pool in pools:
            self.bars.append(Bar(pool, "weights", "publish", step, now, now + seconds))
            self.free[pool] = now + seconds
        return now + seconds


def timeline(loads: Sequence[PoolLoad], steps: int, staleness: int | None = None) -> list[Bar]:
    """Bars of ``steps`` steps.

    ``staleness`` None: stages are barriers. Else a step is collected as soon as its rollout pool is
    free and weights at most ``staleness`` versions old are there; pools that learn follow the order
    of steps, each as soon as what it needs is there.
    """
    clock = _Clock()
    wait = 0 if staleness is None else staleness
    published, collected = [0.0] * (steps + 1), list[float]()
    senders = [p.name for p in loads if p.publish > 0 or p.generates]
    weights = max((p.publish for p in loads), default=0.0)
    for step in range(steps):
        while len(collected) < min(steps, step + wait + 1):
            ahead = len(collected)
            ready = published[max(ahead - wait, 0)]
            pools = [p for p in loads if p.generates]
            ends = [clock.turns(p.name, "collect", ahead, p.collect, ready) for p in pools]
            collected.append(max(ends, default=0.0))
        ready = collected[step]
        for stage in ("prepare", "learn"):
            busy = [(p.name, seconds) for p in loads if (seconds := getattr(p, stage))]
            ends = [clock.turns(name, stage, step, seconds, ready) for name, seconds in busy]
            ready = max(ends, default=ready)
        published[step + 1] = clock.together(senders, step, weights, ready)
    return clock.bars

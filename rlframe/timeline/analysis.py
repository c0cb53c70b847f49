"""What a timeline says: how long each pool did nothing, and which work the whole run waited for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlframe.timeline.file import CONTROLLER, Written

__all__ = ["PoolUse", "Report", "busy_s", "critical_path", "report", "use_of_pools"]

_PLAY = "play"
"""Stage of a collector in which episodes go on."""


@dataclass(frozen=True)
class PoolUse:
    """A pool over the time of the timeline: ``busy_s`` and ``idle_s`` are means over its lanes."""

    lanes: int
    busy_s: float
    idle_s: float
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of a lane by stage; stages that run at the same time are each counted."""
    tokens: int = 0

    @property
    def idle(self) -> float:
        """Share of the time, 0 to 1."""
        whole = self.busy_s + self.idle_s
        return self.idle_s / whole if whole else 0.0


@dataclass(frozen=True)
class Report:
    """``seconds`` is the time of all lives, pauses between them left out."""

    seconds: float
    steps: int
    lives: int
    pools: dict[str, PoolUse]
    path: list[Written]
    path_s: dict[str, float]
    """Seconds on the critical path by stage."""
    rest_s: dict[str, float]
    """What the controller did while nothing of the path ran, seconds by stage; "" is nothing."""


def busy_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans ran."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def critical_path(spans: Sequence[Written]) -> list[Written]:
    """The spans that took longest together, each begun when the one before had ended.

    No order of this work that keeps what followed what could be done sooner than their sum: to make
    the run faster, shorten these. The controller's own spans are waits, and so is playing, which is
    made of generating, scoring and what environments do: they are left out.
    """
    done = (s for s in spans if s.pool != CONTROLLER and s.stage != _PLAY)
    work = sorted(done, key=lambda s: (s.end, s.start))
    ends = [span.end for span in work]
    best, before = [0.0], [0] * len(work)
    for place, span in enumerate(work):
        before[place] = min(bisect_right(ends, span.start), place)
        best.append(max(best[-1], best[before[place]] + span.seconds))
    path: list[Written] = []
    left = len(work)
    while left:
        span = work[left - 1]
        if best[left] == best[left - 1]:
            left -= 1
            continue
        path.append(span)
        left = before[left - 1]
    return path[::-1]


def use_of_pools(spans: Sequence[Written]) -> dict[str, PoolUse]:
    """Busy and idle time of each pool, the controller's among them."""
    windows = _windows(spans)
    whole = sum(end - start for start, end in windows.values())
    lanes: dict[str, dict[str, list[Written]]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        lanes[span.pool][span.lane].append(span)
    found = {}
    for pool, mine in sorted(lanes.items()):
        busy = [busy_s((s.start, s.end) for s in some) for some in mine.values()]
        mean = sum(busy) / len(mine)
        stages: dict[str, float] = defaultdict(float)
        for span in (s for some in mine.values() for s in some):
            stages[span.stage] += span.seconds / len(mine)
        tokens = sum(span.tokens for some in mine.values() for span in some)
        found[pool] = PoolUse(len(mine), mean, max(whole - mean, 0.0), dict(stages), tokens)
    return found


def report(spans: Sequence[Written]) -> Report:
    """Everything about a timeline that is not empty."""
    windows = _windows(spans)
    path, path_s = critical_path(spans), dict[str, float]()
    for span in path:
        path_s[span.stage] = path_s.get(span.stage, 0.0) + span.seconds
    return Report(
        seconds=sum(end - start for start, end in windows.values()),
        steps=len({span.step for span in spans}),
        lives=len(windows),
        pools=use_of_pools(spans),
        path=path,
        path_s=path_s,
        rest_s=_rest(spans, path, windows),
    )


def _windows(spans: Iterable[Written]) -> dict[int, tuple[float, float]]:
    """First start and last end of each life."""
    found: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, end = found.get(span.life, (span.start, span.end))
        found[span.life] = (min(start, span.start), max(end, span.end))
    return found


def _rest(
    spans: Sequence[Written], path: Sequence[Written], windows: dict[int, tuple[float, float]]
) -> dict[str, float]:
    """Time between the spans of the path, by the stage that the controller was in."""
    own = sorted((s for s in spans if s.pool == CONTROLLER), key=lambda s: s.start)
    starts = [span.start for span in own]
    out: dict[str, float] = defaultdict(float)
    for life, (first, last) in windows.items():
        mine = [span for span in path if span.life == life]
        edges = [first, *(t for span in mine for t in (span.start, span.end)), last]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            left = end - begin
            # Stages of the controller follow each other: those near the gap are enough.
            near = own[max(bisect_right(starts, begin) - 8, 0) : bisect_right(starts, end)]
            for span in near:
                shared = min(span.end, end) - max(span.start, begin)
                if shared > 0:
                    out[span.stage] += shared
                    left -= shared
            out[""] += max(left, 0.0)
    return {stage: seconds for stage, seconds in out.items() if seconds > 0}

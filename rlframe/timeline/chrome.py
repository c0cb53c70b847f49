"""A timeline in the Trace Event Format, which chrome://tracing and Perfetto show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlframe.timeline.file import Written

__all__ = ["trace"]


def trace(spans: Sequence[Written]) -> dict[str, Any]:
    """A process a pool, a thread a role of a lane; microseconds since the first span."""
    begin = min(span.start for span in spans)
    pools = {pool: place for place, pool in enumerate(sorted({s.pool for s in spans}), start=1)}
    rows = sorted({(s.pool, s.lane, s.role) for s in spans})
    threads = {row: place for place, row in enumerate(rows, start=1)}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": pool}}
        for pool, pid in pools.items()
    ]
    for (pool, lane, role), tid in threads.items():
        name = lane if lane == role else f"{lane} {role}"
        event = {"name": "thread_name", "ph": "M", "pid": pools[pool], "tid": tid}
        events.append({**event, "args": {"name": name}})
    for span in spans:
        events.append(
            {
                "name": span.stage,
                "cat": span.role,
                "ph": "X",
                "pid": pools[span.pool],
                "tid": threads[span.pool, span.lane, span.role],
                "ts": round((span.start - begin) * 1e6, 1),
                "dur": round(span.seconds * 1e6, 1),
                "args": {"step": span.step, "version": span.version, "tokens": span.tokens},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}

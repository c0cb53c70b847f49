"""``timeline.jsonl`` of a run: one span a line, the newest of them in a bounded size.

Each life of the run (a start, a resume, a restart) begins with a line of its own. Spans of other
hosts are put on the controller's clock: half of the time between asking a process and its answer
is taken for the way, and the estimate of the fastest answer holds.
"""

from __future__ import annotations

import json
import math
import socket
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlframe.errors import SnapshotError
from rlframe.timeline.spans import ProcessSpans, Span, now

__all__ = ["CONTROLLER", "NAME", "TimelineFile", "Written", "read_timeline"]

NAME, _OLDER = "timeline.jsonl", "timeline.older.jsonl"
CONTROLLER, COLLECTORS = "controller", "collectors"
_MARKS = 64
"""Ends of steps that are remembered, to tell the step of a span that is fetched late."""


@dataclass(frozen=True)
class Written:
    """A span as it stands in the file: ``lane`` is a device of ``pool``, or a process without one.

    ``start`` and ``end`` are seconds since 1970 by the controller's clock, ``life`` counts from 0.
    """

    lane: str
    pool: str
    role: str
    stage: str
    start: float
    end: float
    step: int
    version: int
    tokens: int
    life: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


class TimelineFile:
    """Writes spans as they are fetched. ``most_bytes`` bounds what is kept; 0 writes nothing.

    ``pool_of`` says in which pool a role lives.
    """

    def __init__(self, run_dir: Path, pool_of: Mapping[str, str], most_bytes: int) -> None:
        self._path, self._older = run_dir / NAME, run_dir / _OLDER
        self._pool_of, self._most = dict(pool_of), most_bytes
        self._file: IO[str] | None = None
        self._host = socket.gethostname()
        self._clocks: dict[str, tuple[float, float]] = {}
        self._marks: list[tuple[float, int, int]] = [(0.0, 1, 0)]

    def mark(self, step: int, version: int) -> None:
        """From now on spans belong to ``step`` and to weights ``version``."""
        self._marks = [*self._marks[-_MARKS:], (now(), step, version)]

    def write(self, processes: Sequence[ProcessSpans], asked: float) -> None:
        """Add what processes did, who were asked at ``asked`` and have answered now."""
        if not self._most:
            return
        got = now()
        file = self._opened()
        for process in processes:
            offset = self._offset(process, asked, got)
            for span in process.spans:
                file.write(json.dumps(self._line(span, process.rank, offset)) + "\n")
        file.flush()
        if file.tell() > self._most // 2:
            self.close()
            self._path.replace(self._older)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin(self) -> None:
        """Note that a life begins."""
        if self._most:
            file = self._opened()
            file.write(json.dumps({"life": now(), "host": self._host}) + "\n")
            file.flush()

    def _opened(self) -> IO[str]:
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        return self._file

    def _offset(self, process: ProcessSpans, asked: float, got: float) -> float:
        """Seconds that a host's clock is ahead of the controller's; 0 on the same host."""
        if process.host == self._host:
            return 0.0
        way = got - asked
        ahead = process.now - (asked + got) / 2
        best = self._clocks.get(process.host)
        if not math.isnan(ahead) and (best is None or way < best[0]):
            self._clocks[process.host] = best = (way, ahead)
        return best[1] if best is not None else 0.0

    def _line(self, span: Span, rank: int, offset: float) -> dict[str, Any]:
        pool = self._pool_of.get(span.role, CONTROLLER if span.role == CONTROLLER else COLLECTORS)
        start, end = span.start - offset, span.end - offset
        place = bisect_right(self._marks, start, key=lambda mark: mark[0]) - 1
        _, step, version = self._marks[max(place, 0)]
        return {
            "lane": f"{pool}:{rank}" if span.role in self._pool_of else span.role,
            "pool": pool,
            "role": span.role,
            "stage": span.stage,
            "start": round(start, 6),
            "end": round(end, 6),
            "step": step,
            "version": span.version if span.version >= 0 else version,
            "tokens": span.tokens,
        }


def read_timeline(run_dir: str | Path) -> list[Written]:
    """Every span of a run in the order of its start; a line that was cut off is left out.

    Raises SnapshotError where there is no timeline.
    """
    found: list[Written] = []
    life = -1
    for name in (_OLDER, NAME):
        path = Path(run_dir) / name
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                values = json.loads(line)
                if "life" in values:
                    life += 1
                else:
                    found.append(Written(**values, life=max(life, 0)))
            except (ValueError, TypeError):
                continue
    if not found:
        raise SnapshotError(
            f"{run_dir} has no timeline: a run writes {NAME} as it goes (run.timeline_mb above 0)"
        )
    return sorted(found, key=lambda span: span.start)

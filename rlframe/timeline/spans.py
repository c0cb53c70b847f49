"""Noting in a process what it does from when to when; cheap, and bounded until it is fetched.

Times are seconds of the clock of the host (since 1970), which go on evenly inside a process: all
processes of a host can be compared.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Busy", "ProcessSpans", "Span", "SpanLog", "now"]

_BEGAN = time.time() - time.perf_counter()
_MOST = 10_000
"""Spans that wait to be fetched; the oldest go first."""


def now() -> float:
    """Seconds since 1970 by this host's clock, never backwards in a process."""
    return _BEGAN + time.perf_counter()


class Span(NamedTuple):
    """A stage of a role; ``version`` of the weights -1 where the process does not know it."""

    role: str
    stage: str
    start: float
    end: float
    version: int = -1
    tokens: int = 0


@dataclass(frozen=True)
class ProcessSpans:
    """What one process did since it was asked before.

    ``now`` is its clock when it answered (NaN: to an earlier question), ``lost`` counts spans that
    were dropped for room.
    """

    host: str
    rank: int
    pid: int
    now: float
    spans: tuple[Span, ...]
    lost: int = 0


class SpanLog:
    """The spans of a process. Every method may be called from any thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._lock = threading.Lock()
        self._spans: deque[Span] = deque(maxlen=most)
        self._busy: list[Busy] = []
        self._added = 0

    def add(self, span: Span) -> None:
        """Note a span that has ended."""
        with self._lock:
            self._spans.append(span)
            self._added += 1

    @contextmanager
    def span(self, role: str, stage: str, tokens: int = 0) -> Iterator[None]:
        """Note the time of a ``with`` block, also where it raises."""
        start = now()
        try:
            yield
        finally:
            self.add(Span(role, stage, start, now(), tokens=tokens))

    def busy(self, role: str, stage: str) -> Busy:
        """For work of which several pieces go on at once."""
        made = Busy(self, role, stage)
        self._busy.append(made)
        return made

    def take(self, rank: int = 0) -> ProcessSpans:
        """Everything since the last call; what goes on is cut here."""
        for one in self._busy:
            one.cut()
        with self._lock:
            spans, added = tuple(self._spans), self._added
            self._spans.clear()
            self._added = 0
        host, pid = socket.gethostname(), os.getpid()
        return ProcessSpans(host, rank, pid, now(), spans, added - len(spans))


class Busy:
    """One span a stretch of time in which any piece of work was open."""

    def __init__(self, log: SpanLog, role: str, stage: str) -> None:
        self._log, self._role, self._stage = log, role, stage
        self._lock = threading.Lock()
        self._open = self._tokens = 0
        self._since, self._version = 0.0, -1

    @contextmanager
    def work(self) -> Iterator[None]:
        """A piece."""
        with self._lock:
            if not self._open:
                self._since = now()
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._note()

    def made(self, tokens: int, version: int = -1) -> None:
        """Count what came of a piece."""
        with self._lock:
            self._tokens += tokens
            self._version = version

    def cut(self) -> None:
        """Note the stretch so far."""
        with self._lock:
            if self._open:
                self._note()
                self._since = now()

    def _note(self) -> None:
        span = Span(self._role, self._stage, self._since, now(), self._version, self._tokens)
        self._log.add(span)
        self._tokens = 0

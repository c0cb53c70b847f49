"""Simulated generation: replicas that decode many sequences at once, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["SimEngine", "SimSequence"]


_EPSILON_S = 1e-9
"""Less time than this is rounding."""


@dataclass
class SimSequence:
    """One sample: how many tokens it needs, what weights drew its first and last token."""

    group: int
    tokens: int
    first_version: int = -1
    last_version: int = -1
    started_s: float = -1.0


@dataclass
class _Replica:
    """Sequences that run together go on at one pace, so that a common counter times them all."""

    waiting: deque[SimSequence] = field(default_factory=deque)
    running: list[tuple[float, int, SimSequence]] = field(default_factory=list)
    made: float = 0.0
    """Tokens that a sequence running since the start would have."""
    dead_until: float = 0.0


class SimEngine:
    """Replicas with ``slots`` sequences at once; a token of each takes ``pace(running)`` seconds.

    ``advance`` moves time on; what ended is kept until :meth:`take`.
    """

    def __init__(self, replicas: int, slots: int, pace: Callable[[int], float]) -> None:
        self._replicas = [_Replica() for _ in range(replicas)]
        self._slots, self._pace = slots, pace
        self._order = itertools.count()
        self._ended: list[SimSequence] = []
        self.version = 0
        self.now = 0.0
        self.busy_s = 0.0
        """Seconds of all replicas together in which they had something to do."""
        self.tokens = 0

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return sum(len(r.waiting) + len(r.running) for r in self._replicas)

    def submit(self, group: int, lengths: list[int]) -> None:
        """Queue the samples of a group on the replica with least to do."""
        replica = min(self._replicas, key=lambda r: len(r.waiting) + len(r.running))
        replica.waiting.extend(SimSequence(group, tokens) for tokens in lengths)
        self._admit(replica)

    def fail(self, number: int, seconds: float) -> None:
        """A replica is gone for so long; its sequences begin again on the others."""
        replica = self._replicas[number]
        replica.dead_until = self.now + seconds
        lost = [*(s for *_, s in replica.running), *replica.waiting]
        replica.running.clear()
        replica.waiting.clear()
        for one in lost:
            home = min(
                (r for r in self._replicas if r.dead_until <= self.now or r is replica),
                key=lambda r: (r is replica, len(r.waiting) + len(r.running)),
            )
            home.waiting.append(SimSequence(one.group, one.tokens))
        for other in self._replicas:
            self._admit(other)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        for replica in self._replicas:
            self._run(replica, until)
        self.now = until

    def next_end(self) -> float | None:
        """When the next sequence ends, if nothing else comes; None: none runs."""
        times = [self._next(replica) for replica in self._replicas]
        known = [time for time in times if time is not None]
        return min(known, default=None)

    def restart_running(self) -> None:
        """Sequences that run go on under the version of now."""
        for replica in self._replicas:
            for *_, one in replica.running:
                one.last_version = self.version

    def take(self) -> list[SimSequence]:
        """What has ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    # --- inside -------------------------------------------------------------------------------

    def _next(self, replica: _Replica) -> float | None:
        if not replica.running:
            return replica.dead_until if replica.waiting else None
        end, *_ = replica.running[0]
        start = max(self.now, replica.dead_until)
        return start + (end - replica.made) * self._pace(len(replica.running))

    def _run(self, replica: _Replica, until: float) -> None:
        now = max(self.now, replica.dead_until)
        if now > self.now:
            self._admit(replica, at=now)
        while replica.running and now <= until:
            pace = self._pace(len(replica.running))
            end, *_ = replica.running[0]
            spent = min((end - replica.made) * pace, until - now)
            self.busy_s += spent
            if spent < (end - replica.made) * pace - _EPSILON_S:
                replica.made += spent / pace
                return
            replica.made, now = end, now + spent
            while replica.running and replica.running[0][0] <= replica.made:
                *_, done = heapq.heappop(replica.running)
                done.last_version = self.version
                self.tokens += done.tokens
                self._ended.append(done)
            self._admit(replica, at=now)

    def _admit(self, replica: _Replica, at: float | None = None) -> None:
        now = self.now if at is None else at
        if replica.dead_until > now:
            return
        while replica.waiting and len(replica.running) < self._slots:
            one = replica.waiting.popleft()
            one.first_version = one.last_version = self.version
            one.started_s = now
            entry = (replica.made + one.tokens, next(self._order), one)
            heapq.heappush(replica.running, entry)

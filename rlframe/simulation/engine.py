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
    at: float = 0.0
    """Until when it was run."""
    busy_s: float = 0.0
    stamp: int = 0
    """Of the last event that was noted for it; earlier ones are void."""


class SimEngine:
    """Replicas with ``slots`` sequences at once; a token of each takes ``pace(running)`` seconds.

    ``advance`` moves time on; what ended is kept until :meth:`take`. A replica is run when
    something happens to it, not whenever time passes: thousands cost what happens on them.
    """

    def __init__(self, replicas: int, slots: int, pace: Callable[[int], float]) -> None:
        self._replicas = [_Replica() for _ in range(replicas)]
        self._slots, self._pace = slots, pace
        self._order = itertools.count()
        self._ended: list[SimSequence] = []
        self._events: list[tuple[float, int, int]] = []
        self.version = 0
        self.now = 0.0
        self.tokens = 0

    @property
    def busy_s(self) -> float:
        """Seconds of all replicas together in which they had something to do."""
        for number in range(len(self._replicas)):
            self._settle(number)
        return sum(replica.busy_s for replica in self._replicas)

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return sum(len(r.waiting) + len(r.running) for r in self._replicas)

    def submit(self, group: int, lengths: list[int]) -> None:
        """Queue the samples of a group on the replica with least to do."""
        loads = [len(r.waiting) + len(r.running) for r in self._replicas]
        number = loads.index(min(loads))
        self._settle(number)
        self._replicas[number].waiting.extend(SimSequence(group, tokens) for tokens in lengths)
        self._changed(number)

    def fail(self, number: int, seconds: float) -> None:
        """A replica is gone for so long; its sequences begin again on the others."""
        self._settle_all()
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
        self._changed_all()

    def cancel(self, group: int) -> None:
        """End what is left of a group; what it has drawn is lost."""
        for number, replica in enumerate(self._replicas):
            gone = [entry for entry in replica.running if entry[2].group == group]
            waits = any(one.group == group for one in replica.waiting)
            if not gone and not waits:
                continue
            self._settle(number)
            gone = [entry for entry in replica.running if entry[2].group == group]
            self.tokens += round(sum(one.tokens - end + replica.made for end, _, one in gone))
            replica.running = [entry for entry in replica.running if entry not in gone]
            heapq.heapify(replica.running)
            replica.waiting = deque(one for one in replica.waiting if one.group != group)
            self._changed(number)
        self._ended = [one for one in self._ended if one.group != group]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while (at := self.next_end()) is not None and at <= until:
            number = self._events[0][1]
            self.now = max(self.now, at)
            self._settle(number)
            self._changed(number)
        self.now = until

    def skip(self, seconds: float) -> None:
        """Let time pass in which nothing is decoded."""
        self._settle_all()
        self.now += seconds
        for replica in self._replicas:
            replica.at = self.now
        self._changed_all()

    def next_end(self) -> float | None:
        """When the next sequence ends, or a replica is back, if nothing else comes; None: never."""
        while self._events and self._events[0][2] != self._replicas[self._events[0][1]].stamp:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

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

    def _settle_all(self) -> None:
        for number in range(len(self._replicas)):
            self._settle(number)

    def _changed_all(self) -> None:
        for number in range(len(self._replicas)):
            self._changed(number)

    def _changed(self, number: int) -> None:
        """Something was added or taken: begin what can be, and note when the next thing happens."""
        replica = self._replicas[number]
        self._admit(replica, self.now)
        replica.stamp += 1
        if replica.running:
            end, *_ = replica.running[0]
            start = max(replica.at, replica.dead_until)
            at = start + (end - replica.made) * self._pace(len(replica.running))
        elif replica.waiting:
            at = replica.dead_until
        else:
            return
        heapq.heappush(self._events, (max(at, self.now), number, replica.stamp))

    def _settle(self, number: int) -> None:
        """Run a replica until now."""
        replica = self._replicas[number]
        now = max(replica.at, replica.dead_until)
        if now > replica.at and now <= self.now:
            self._admit(replica, now)
        replica.at = self.now
        while replica.running and now <= self.now:
            pace = self._pace(len(replica.running))
            end, *_ = replica.running[0]
            spent = min((end - replica.made) * pace, self.now - now)
            replica.busy_s += spent
            if spent < (end - replica.made) * pace - _EPSILON_S:
                replica.made += spent / pace
                return
            replica.made, now = end, now + spent
            while replica.running and replica.running[0][0] <= replica.made:
                *_, done = heapq.heappop(replica.running)
                done.last_version = self.version
                self.tokens += done.tokens
                self._ended.append(done)
            self._admit(replica, now)

    def _admit(self, replica: _Replica, now: float) -> None:
        if replica.dead_until > now:
            return
        while replica.waiting and len(replica.running) < self._slots:
            one = replica.waiting.popleft()
            one.first_version = one.last_version = self.version
            one.started_s = now
            entry = (replica.made + one.tokens, next(self._order), one)
            heapq.heappush(replica.running, entry)

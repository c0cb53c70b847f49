"""What plays groups in virtual time, in the place of a collector."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rlframe.batching.batch import Batch
from rlframe.collecting.collected import Collected
from rlframe.collecting.entry import EpisodeSummary, GroupEntry, GroupSummary
from rlframe.interfaces.loop import Tail
from rlframe.requests import Request, Row, Sampling
from rlframe.simulation.engine import SimEngine, SimSequence

__all__ = ["SimPlayer", "SimPrompts", "SimSpec"]


@dataclass(frozen=True)
class SimSpec:
    """Speeds and sizes of a simulated run; times in seconds, lengths in tokens.

    ``length`` draws the tokens of one response. A token of every running sequence takes
    ``token_s + sequence_s * running``: reading the weights, and work that grows with the batch.
    """

    steps: int
    prompts_per_step: int
    samples: int
    length: Callable[[random.Random], int]
    replicas: int = 1
    slots: int = 256
    token_s: float = 0.01
    sequence_s: float = 0.0
    train_s: float = 0.0
    """Of a step, beside what each token costs."""
    train_token_s: float = 0.0
    sync_s: float = 0.0
    accept: float = 1.0
    """Share of groups that ``Algorithm.accept`` takes."""
    fail_every_s: float = 0.0
    """Mean time between failures of a replica; 0: never."""
    repair_s: float = 0.0
    max_refills: int = 1000
    turns: bool = False
    """Whether trainer and rollout share devices, for schedulers that can take turns on them."""
    seed: int = 0


class SimPrompts:
    """Prompts without text, numbered."""

    def __init__(self) -> None:
        self.sampling = Sampling()
        self._drawn = 0

    def draw(self, count: int) -> list[Row]:
        """The next rows."""
        first, self._drawn = self._drawn, self._drawn + count
        return [Row((0,), {}, group_id=first + i) for i in range(count)]


class SimPlayer:
    """Starts groups on a :class:`SimEngine`, and waits for them by letting time pass."""

    def __init__(self, spec: SimSpec, engine: SimEngine, tail: Tail) -> None:
        self.spec, self.engine = spec, engine
        requests = [Request((0,))] * spec.samples
        self._asked, self._enough = len(tail.requests(requests)), tail.enough(requests)
        self.paused = False
        """Whether what runs waits for new weights."""
        self._random = random.Random(spec.seed)
        self._failures = random.Random(spec.seed + 1)
        self._lengths: dict[int, list[int]] = {}
        self._ended: dict[int, list[SimSequence]] = {}
        self._next_failure = self._draw_failure()

    def collect(self, rows: Sequence[Row]) -> Future[Collected]:
        """A group for each row, all together."""
        return self.turn(rows, len(rows), 0.0)

    def turn(self, rows: Sequence[Row], at_least: int, wait_s: float) -> Future[Collected]:
        """Start rows; let time pass until so many groups have ended."""
        for row in rows:
            lengths = [self.spec.length(self._random) for _ in range(self._asked)]
            self._lengths[row.group_id] = lengths
            self._ended[row.group_id] = []
            self.engine.submit(row.group_id, lengths)
        found = Collected()
        self._gather(found)
        while _count(found) < min(at_least, _count(found) + len(self._lengths)):
            at = self.engine.next_end()
            assert at is not None, "groups are open and nothing runs"
            self.let_pass(at - self.engine.now)
            self._gather(found)
        future: Future[Collected] = Future()
        future.set_result(found)
        return future

    def drop(self, groups: Sequence[int]) -> None:
        """End these groups; they begin anew when they are started again."""
        for group in groups:
            self.engine.cancel(group)
            del self._lengths[group], self._ended[group]

    # --- inside -------------------------------------------------------------------------------

    def let_pass(self, seconds: float) -> None:
        """Let virtual time pass, failures included."""
        until = self.engine.now + seconds
        if self.paused:
            self.engine.skip(seconds)
            return
        while self._next_failure is not None and self._next_failure <= until:
            self.engine.advance(max(self._next_failure - self.engine.now, 0.0))
            self.engine.fail(self._failures.randrange(self.spec.replicas), self.spec.repair_s)
            self._next_failure = self._draw_failure()
        self.engine.advance(max(until - self.engine.now, 0.0))

    def _draw_failure(self) -> float | None:
        every = self.spec.fail_every_s
        return self.engine.now + self._failures.expovariate(1 / every) if every else None

    def _gather(self, found: Collected) -> None:
        for one in self.engine.take():
            if one.group not in self._ended:
                continue  # it had enough already
            ended = self._ended[one.group]
            ended.append(one)
            if len(ended) < self._enough:
                continue
            if len(ended) < len(self._lengths[one.group]):
                self.engine.cancel(one.group)
            del self._lengths[one.group], self._ended[one.group]
            if self._random.random() < self.spec.accept:
                found.accepted.append(_entry(one.group, ended))
            else:
                found.refused.append(one.group)


def _count(found: Collected) -> int:
    return len(found.accepted) + len(found.refused)


def _entry(group: int, ended: Sequence[SimSequence]) -> GroupEntry:
    episodes = tuple(
        EpisodeSummary(
            episode_id=i,
            train=True,
            reward=0.0,
            reward_parts={},
            length=one.tokens,
            finish_reason="stop",
            rows=1,
            versions=(one.first_version, one.last_version),
        )
        for i, one in enumerate(ended)
    )
    batch = Batch({}, len(episodes))
    return GroupSummary(group, "", episodes).at(batch)

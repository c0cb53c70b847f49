"""Runs groups of episodes: requests, environment, rewards. Knows nothing of training."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe.algorithm import Algorithm
from rlframe.asking import ask
from rlframe.batching.assemble import pack_groups
from rlframe.calling.loops import OwnLoop, ThreadLoop
from rlframe.calling.protocol import ONE_TO_ONE, protocol
from rlframe.calling.waiting import cancelled, enough_of, gather, some_of
from rlframe.collecting.collected import Gathered
from rlframe.collecting.continuing import rest_of
from rlframe.collecting.entry import GroupSummary
from rlframe.collecting.playing import Playing
from rlframe.errors import RolloutError
from rlframe.interfaces.data import Environment
from rlframe.interfaces.loop import Tail
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.interfaces.transfer import Produced
from rlframe.recording.engine_figures import growth
from rlframe.recording.tracing import Tracer
from rlframe.requests import Completion, Episode, Group, Request, Row
from rlframe.timeline import SpanLog

if TYPE_CHECKING:
    from rlframe.rewards import Scorer

__all__ = ["EPISODES_PER_GROUP", "Collector", "episode_seed"]

EPISODES_PER_GROUP = 2**20
"""Episode ids of one group are ``group_id * EPISODES_PER_GROUP + position``."""


def episode_seed(seed: int, group_id: int, position: int) -> int:
    """The sampling seed of one episode: the same in every run with this seed."""
    text = f"{seed}/{group_id}/{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class _Played:
    """A group that has ended, and how many episodes it lost: to failed rewards, to its tail."""

    group: Group
    skipped: int = 0
    late: int = 0


class Collector:
    """Plays many groups at once on one asyncio loop."""

    def __init__(
        self,
        algorithm: Algorithm,
        environment: Environment,
        scorer: Scorer,
        client: RolloutEngine,
        seed: int,
        prompt_key: str = "prompt",
        tracer: Tracer | None = None,
        tail: Tail | None = None,
    ) -> None:
        self._algorithm, self._environment, self._scorer = algorithm, environment, scorer
        self._client, self._seed, self._prompt_key = client, seed, prompt_key
        self._tracer, self._fault = tracer or Tracer(), ""
        self._loop: OwnLoop | ThreadLoop = OwnLoop()
        self._playing_of = Playing(environment, scorer)
        self.watch(SpanLog(), "collector")
        self._tail, self._all = tail or Tail(), Tail()
        self._playing: dict[int, asyncio.Task[_Played]] = {}
        self._routed: Mapping[str, float] = {}

    @protocol(ONE_TO_ONE)
    def collect(self, rows: Sequence[Row], samples: int = 0) -> Produced:
        """Play a group for each row; a :class:`Gathered`, and the columns of accepted groups.

        ``samples`` above 0 plays so many episodes of each row as it asks for, and accepts them all.
        """
        if samples:
            return self._gathered(self._loop.run(self._run_asked(rows, samples)), True)
        return self._gathered(self._loop.run(self._run_groups(rows)), False)

    @protocol(ONE_TO_ONE)
    def turn(self, rows: Sequence[Row], at_least: int, wait_s: float) -> Produced:
        """Start a group for each row, wait, and give all groups that have ended.

        Waits until ``at_least`` of those that are played have ended, at most ``wait_s`` seconds;
        the others are played on until the next call. Raises the first error of a group.
        """
        if isinstance(self._loop, OwnLoop):
            self._loop.close()
            self._loop = ThreadLoop("rlframe-collector")
        return self._gathered(self._loop.run(self._turn(rows, at_least, wait_s)), False)

    async def _turn(self, rows: Sequence[Row], at_least: int, wait_s: float) -> list[_Played]:
        for row in rows:
            task = asyncio.ensure_future(self.run_group(row, self._requests(row), self._tail))
            self._playing[row.group_id] = task
        ended = await some_of(set(self._playing.values()), at_least, wait_s)
        groups = [group for group, task in self._playing.items() if task in ended]
        return [self._playing.pop(group).result() for group in groups]

    @protocol(ONE_TO_ONE)
    def drop(self, groups: Sequence[int]) -> None:
        """End these groups where they are played; nothing of them is given. Others are ignored."""
        tasks = [self._playing.pop(group) for group in groups if group in self._playing]
        self._loop.run(cancelled(tasks))

    def _gathered(self, ended: Sequence[_Played], accept_all: bool) -> Produced:
        accepted, out = list[Group](), Gathered()
        for one in ended:
            group = one.group
            out.skipped_episodes += one.skipped
            out.late_episodes += one.late
            if not group.trained:
                why = "ended in time" if one.late and not one.skipped else "was scored"
                out.failed[group.row.group_id] = f"no episode of the group {why}"
            elif accept_all or ask(self._algorithm, "accept", group):
                accepted.append(group)
            else:
                out.refused.append(group.row.group_id)
        out.fault, self._fault = self._scorer.take_fault() or self._fault, ""
        counted, router = self._client.routed()
        out.routed, self._routed = growth(self._routed, counted), counted
        out.router = dict(router)
        columns, out.groups = pack_groups(accepted, self._algorithm.schema(), self._prompt_key)
        return Produced(out, columns)

    @protocol(ONE_TO_ONE)
    def validate(self, rows: Sequence[Row]) -> list[GroupSummary]:
        """Play an episode for each row as it is asked for, nothing refused."""
        return [GroupSummary.of(group) for group in self.evaluate(rows)]

    def evaluate(self, rows: Sequence[Row], samples: int = 1) -> list[Group]:
        """Play rows as they are asked for, nothing refused; ``samples`` episodes each."""
        return [one.group for one in self._loop.run(self._run_asked(rows, samples))]

    def close(self) -> None:
        """End the loop and what still runs on it, and the environment."""
        self._loop.close()
        self._environment.close()

    def watch(self, spans: SpanLog, name: str) -> None:
        """Note from now on when episodes are played and scored, as of the process ``name``."""
        self._busy, self._scoring = spans.busy(name, "play"), spans.busy(name, "reward")

    async def run_group(self, row: Row, requests: Sequence[Request], tail: Tail) -> _Played:
        """Episodes of one draw, scored, as many as ``tail`` waits for."""
        asked = tail.requests(requests)
        stamped = [self._stamp(row, position, r) for position, r in enumerate(asked)]
        trained = [request.train for request in asked]
        work = [self._play(row, request) for request in stamped]
        ended = await enough_of(work, trained, tail.enough(requests))
        late_ones = () if tail.keeps_late() else ("abort",)
        episodes = [
            one
            for one in ended
            if one is not None and not (one.request.train and one.finish_reason in late_ones)
        ]
        if not episodes:
            return _Played(Group(row, []), late=len(asked))
        with self._scoring.work():
            scored = await self._scorer.score(row, self._whole(episodes))
        self._tracer.write(row, episodes)
        # A reward model scores them later, or nobody does.
        unscored = not (self._scorer.gives_rewards or self._environment.gives_rewards)
        kept = [episode for episode in scored if unscored or episode.reward is not None]
        lost = len(episodes) - len(kept)
        return _Played(Group(row, kept), skipped=lost, late=len(asked) - len(episodes))

    def _whole(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Those that their environment could play to the end."""
        self._fault = next((one.fault for one in episodes if one.fault), self._fault)
        return [one for one in episodes if not one.fault]

    async def _run_groups(self, rows: Sequence[Row]) -> list[_Played]:
        return await gather([self.run_group(r, self._requests(r), self._tail) for r in rows])

    async def _run_asked(self, rows: Sequence[Row], samples: int) -> list[_Played]:
        """Rows as they are asked for, each waited for."""
        asked = [(row, [row.request() for _ in range(samples)]) for row in rows]
        return await gather([self.run_group(row, some, self._all) for row, some in asked])

    def _requests(self, row: Row) -> list[Request]:
        made = ask(self._algorithm, "requests", row)
        name = type(self._algorithm).__name__
        if not isinstance(made, list | tuple) or not all(isinstance(r, Request) for r in made):
            raise RolloutError(f"{name}.requests returned {made!r}: return a list of Request")
        if not made:
            raise RolloutError(f"{name}.requests gave none for a prompt")
        return list(made)

    async def _play(self, row: Row, request: Request) -> Episode:
        with self._busy.work():
            return await self._playing_of.play(row, request, self._generate)

    async def _generate(self, request: Request) -> Completion:
        """One generation. What a publish aborted goes on under the new weights."""
        started = time.monotonic()
        done = await self._client.generate(request)
        while done.finish_reason == "abort" and (rest := _rest(request, done, started)) is not None:
            done = _joined(done, await self._client.generate(rest))
        return done

    def _stamp(self, row: Row, position: int, request: Request) -> Request:
        sampling = request.sampling
        if sampling.seed is None:
            sampling = dataclasses.replace(
                sampling, seed=episode_seed(self._seed, row.group_id, position)
            )
        return dataclasses.replace(
            request,
            sampling=sampling,
            request_id=f"{row.group_id}-{position}",
            group_id=row.group_id,
            episode_id=row.group_id * EPISODES_PER_GROUP + position,
            session_id=f"{row.group_id}-{position}",
        )


def _rest(request: Request, done: Completion, started: float) -> Request | None:
    """What is left of an aborted request; None: nothing is, or its deadline has passed."""
    left = None
    if request.deadline_s is not None:
        left = request.deadline_s - (time.monotonic() - started)
        if left <= 0:
            return None
    return rest_of(request, done.token_ids, left)


def _joined(first: Completion, second: Completion) -> Completion:
    return Completion(
        (*first.token_ids, *second.token_ids),
        (*first.logprobs, *second.logprobs),
        (*first.versions, *second.versions),
        second.finish_reason,
    )

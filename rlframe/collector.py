"""Runs groups of episodes: requests, environment, rewards. Knows nothing of training."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rlframe.algorithm import Algorithm
from rlframe.asking import ask, raised_in
from rlframe.errors import RlframeError, RolloutError
from rlframe.interfaces.data import Environment
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.requests import Completion, Episode, FinishReason, Group, Request, Row, Segment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlframe.rewards import Scorer

__all__ = ["Collected", "Collector", "OfflineCollector", "episode_seed"]

T = TypeVar("T")

EPISODES_PER_GROUP = 2**20
"""Episode ids of one group are ``group_id * EPISODES_PER_GROUP + position``."""


@dataclass
class Collected:
    """Groups that were accepted, and why others were not."""

    accepted: list[Group] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Ids of groups that ``Algorithm.accept`` turned down."""
    failed: dict[int, str] = field(default_factory=dict)
    """Ids of groups without a scored episode, and the reason."""
    skipped_episodes: int = 0
    """Episodes that left their group because a reward failed."""
    fault: str = ""
    """What such a reward did, the last time; empty where none failed."""


def episode_seed(seed: int, group_id: int, position: int) -> int:
    """The sampling seed of one episode: the same in every run with this seed."""
    text = f"{seed}/{group_id}/{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Collector:
    """Plays many groups at once on one asyncio loop."""

    def __init__(
        self,
        algorithm: Algorithm,
        environment: Environment,
        scorer: Scorer,
        client: RolloutEngine,
        seed: int,
    ) -> None:
        self._algorithm, self._environment, self._scorer = algorithm, environment, scorer
        self._client, self._seed = client, seed
        self._loop = OwnLoop()

    def collect(self, rows: Sequence[Row]) -> Collected:
        """Play a group for each row and sort the groups by what becomes of them."""
        groups = self._loop.run(self._run_groups(rows, self._requests))
        out = Collected(fault=self._scorer.take_fault())
        for group, skipped in groups:
            self._sort(group, skipped, out)
        return out

    def evaluate(self, rows: Sequence[Row], samples: int = 1) -> list[Group]:
        """Play rows as they are asked for, nothing refused; ``samples`` episodes each."""
        groups = self._loop.run(
            self._run_groups(rows, lambda row: [row.request() for _ in range(samples)])
        )
        return [group for group, _ in groups]

    def close(self) -> None:
        """End the loop and what still runs on it."""
        self._loop.close()

    async def run_group(self, row: Row, requests: Sequence[Request]) -> tuple[Group, int]:
        """Episodes of one draw, scored, and the number of episodes that no reward could score."""
        stamped = [self._stamp(row, position, r) for position, r in enumerate(requests)]
        episodes = await _gather([self._play(row, request) for request in stamped])
        scored = await self._scorer.score(row, episodes)
        kept = [episode for episode in scored if episode.reward is not None]
        return Group(row, kept), len(episodes) - len(kept)

    async def _run_groups(
        self, rows: Sequence[Row], requests_of: Callable[[Row], list[Request]]
    ) -> list[tuple[Group, int]]:
        return await _gather([self.run_group(row, requests_of(row)) for row in rows])

    def _requests(self, row: Row) -> list[Request]:
        made = ask(self._algorithm, "requests", row)
        name = type(self._algorithm).__name__
        if not isinstance(made, list | tuple) or not all(isinstance(r, Request) for r in made):
            raise RolloutError(f"{name}.requests returned {made!r}: return a list of Request")
        if not made:
            raise RolloutError(f"{name}.requests gave none for a prompt")
        return list(made)

    async def _play(self, row: Row, request: Request) -> Episode:
        what = f"environment {type(self._environment).__name__}.run"
        try:
            episode = await self._environment.run(row, request, self._generate)
        except RlframeError:
            raise
        except Exception as error:
            raise RolloutError(raised_in(what, error)) from error
        _check_episode(what, episode)
        return episode

    async def _generate(self, request: Request) -> Completion:
        return await self._client.generate(request)

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

    def _sort(self, group: Group, skipped: int, out: Collected) -> None:
        out.skipped_episodes += skipped
        if not group.trained:
            out.failed[group.row.group_id] = "no episode of the group was scored"
        elif ask(self._algorithm, "accept", group):
            out.accepted.append(group)
        else:
            out.refused.append(group.row.group_id)


def _check_episode(what: str, episode: object) -> None:
    """Raises RolloutError where an environment gave no episode, or lists that do not match."""
    if not isinstance(episode, Episode):
        raise RolloutError(f"{what} returned {type(episode).__name__}: return an Episode")
    if not episode.segments:
        raise RolloutError(f"{what} returned an Episode without segments")
    for segment in episode.segments:
        lists = ("response_mask", "logprobs", "versions", "turn_ids")
        count = len(segment.response_ids)
        odd = [name for name in lists if len(getattr(segment, name)) != count]
        if odd:
            raise RolloutError(
                f"{what}: a segment has {count} response_ids but "
                f"{len(getattr(segment, odd[0]))} {odd[0]}"
            )


class OwnLoop:
    """One event loop for a whole run, also where the caller's thread runs one (a notebook)."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result."""
        return self._apart(lambda: self._runner.run(work))

    def close(self) -> None:
        """Cancel what still runs."""
        self._apart(self._runner.close)
        if self._thread is not None:
            self._thread.shutdown()

    def _apart(self, call: Callable[[], T]) -> T:
        """Call here, or in a thread of its own where this thread is inside a running loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return call()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "rlframe-collector")
        return self._thread.submit(call).result()


class OfflineCollector:
    """For methods whose data writes the responses: tokenises them, samples nothing."""

    def __init__(
        self, algorithm: Algorithm, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int
    ) -> None:
        self._algorithm, self._tokenizer, self._most = algorithm, tokenizer, max_new_tokens

    def collect(self, rows: Sequence[Row]) -> Collected:
        """One group a row, one episode an example."""
        return Collected([self._group(row) for row in rows])

    def close(self) -> None:
        """Nothing to end."""

    def _group(self, row: Row) -> Group:
        episodes = []
        for position, example in enumerate(ask(self._algorithm, "examples", row)):
            ids, reason = self._encode(example.response)
            count = len(ids)
            segment = Segment(
                list(row.prompt_ids), ids, [True] * count, [0.0] * count, [-1] * count, [0] * count
            )
            request = dataclasses.replace(
                row.request(),
                group_id=row.group_id,
                episode_id=row.group_id * EPISODES_PER_GROUP + position,
            )
            columns = dict(example.columns)
            episodes.append(
                Episode(request, [segment], reason, example.response, None, {}, columns)
            )
        return Group(row, episodes)

    def _encode(self, response: str) -> tuple[list[int], FinishReason]:
        ids = list(self._tokenizer.encode(response, add_special_tokens=False))
        end = self._tokenizer.eos_token_id
        if end is not None:
            ids.append(int(end))
        return (ids, "stop") if len(ids) <= self._most else (ids[: self._most], "length")


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the rest and is raised itself."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

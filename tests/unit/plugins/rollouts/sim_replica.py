"""A replica in virtual time: a token a second, deaths, hangs, and what it was asked."""

from __future__ import annotations

import asyncio
import itertools

from rlframe.requests import Completion, Request, Sampling
from rlframe_plugins.rollouts.replicas import Replica, ReplicaLost, Seen
from rlframe_plugins.rollouts.router import Router, RouterOptions


def expected(request: Request, count: int) -> list[int]:
    """The tokens that follow a prompt: each says where in the sequence it stands."""
    first = len(request.prompt_ids)
    return list(range(first, first + count))


class SimReplica(Replica):
    """Draws ``expected`` tokens, one every ``token_s``; ``streams`` says whether they are seen."""

    def __init__(self, name: str, token_s: float = 1.0, streams: bool = True) -> None:
        self.name, self.token_s, self.streams = name, token_s, streams
        self.alive, self.hangs, self.deaths, self.welcomed = True, False, 0, 0
        self.busy = False
        self.running: dict[str, asyncio.Event] = {}
        self.asked: list[Request] = []
        self._death: asyncio.Future[None] | None = None

    async def generate(self, request: Request, seen: Seen) -> Completion:
        if not self.alive:
            raise ReplicaLost(f"{self.name} is dead")
        assert request.request_id not in self.running
        ended = self.running[request.request_id] = asyncio.Event()
        self.asked.append(request)
        life = self.deaths
        try:
            return await self._draw(request, seen, ended, life)
        finally:
            self.running.pop(request.request_id, None)

    async def _draw(
        self, request: Request, seen: Seen, ended: asyncio.Event, life: int
    ) -> Completion:
        loop = asyncio.get_running_loop()
        late = None if request.deadline_s is None else loop.time() + request.deadline_s
        mine = Seen()
        for token in expected(request, request.sampling.max_new_tokens):
            until = loop.time() + self.token_s
            stop = until if late is None else min(until, late)
            try:
                async with asyncio.timeout_at(stop):
                    await ended.wait()
            except TimeoutError:
                pass
            while self.hangs:
                await asyncio.sleep(self.token_s)
            if self.deaths != life:
                raise ReplicaLost(f"{self.name} died")
            if ended.is_set() or (late is not None and late <= until):
                return mine.completion("abort")
            self.signs += 1
            mine.add([token], [-1.0], [0])
            if self.streams:
                seen.add([token], [-1.0], [0])
        return mine.completion("length")

    def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].set()

    async def check(self) -> str:
        if self.hangs or self.busy:
            await asyncio.sleep(10_000)
        return "" if self.alive else f"{self.name} is dead"

    async def welcome(self) -> None:
        self.welcomed += 1

    def die(self) -> None:
        self.alive, self.hangs = False, False
        self.deaths += 1
        for one in self.running.values():
            one.set()

    def rise(self) -> None:
        self.alive, self.hangs = True, False


_ids = itertools.count()


def ask(
    tokens: int = 4, group: int = -1, session: str = "", deadline: float | None = None
) -> Request:
    sampling = Sampling(max_new_tokens=tokens, seed=7)
    return Request(
        (1, 2, 3),
        sampling,
        request_id=f"r{next(_ids)}",
        group_id=group,
        session_id=session,
        deadline_s=deadline,
    )


def made(count: int, **options: object) -> tuple[list[SimReplica], Router]:
    replicas = [SimReplica(f"{number}") for number in range(count)]
    return replicas, Router("rollout", replicas, RouterOptions(**options))  # type: ignore[arg-type]


def whole(request: Request, got: Completion) -> None:
    """All tokens that were asked for, in their places, each once."""
    count = request.sampling.max_new_tokens
    assert list(got.token_ids) == expected(request, count)
    assert len(got.logprobs) == len(got.versions) == count
    assert got.finish_reason == "length"

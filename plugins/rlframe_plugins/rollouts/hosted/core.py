"""One engine on an event loop: requests, versions of tokens, weights, pause and sleep."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlframe import RolloutError
from rlframe.requests import Completion, FinishReason
from rlframe_plugins.rollouts.hosted.frames import Job

__all__ = ["HostedCore", "Live"]


@dataclass(eq=False)
class Live:
    """A request that runs, and what it has so far: equal lengths of ids, log-probs, versions."""

    job: Job
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: FinishReason = "abort"
    work: asyncio.Task[None] | None = None
    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever there is more, and at the end."""

    def add(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Tokens that were drawn."""
        self.ids += ids
        self.logprobs += logprobs
        self.versions += versions
        self.fresh.set()

    def completion(self) -> Completion:
        """What there is."""
        return Completion(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), self.reason)


class HostedCore(ABC):
    """Subclass with what one kind of engine does between two tokens; ``name`` is it for users.

    Everything that stops or changes the engine happens in turn. Requests that come meanwhile wait
    here, before they reach it.
    """

    name: str

    def __init__(self) -> None:
        self._live: dict[int | str, Live] = {}
        self._open, self._held_back = asyncio.Event(), False
        self._open.set()
        self._turn = asyncio.Lock()
        self._busy_s, self._since = 0.0, 0.0
        self.version, self.loaded = -1, False
        """What serves; and whether anything does, or a load is under way."""

    # --- of one kind of engine ----------------------------------------------------------------

    @abstractmethod
    async def draw(self, name: str, live: Live) -> None:
        """Give ``live`` its tokens and its reason to end. To be cancelled ends it there too."""

    @abstractmethod
    async def halt(self) -> None:
        """Stop between two tokens; what runs is kept. One that stands still may be told again."""

    @abstractmethod
    async def go_on(self) -> None:
        """The reverse of :meth:`halt`."""

    @abstractmethod
    async def replace(self, version: int, path: str, entries: Any) -> None:
        """Take the weights of a parcel, while it stands still; prompts kept are of no use then."""

    @abstractmethod
    async def release(self, level: int, real: bool) -> None:
        """Give memory back, where it can (``real``); nothing runs."""

    @abstractmethod
    async def rouse(self, real: bool, *, weights_only: bool = False) -> None:
        """Take the memory again."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """The engine's own, which never fall."""

    @abstractmethod
    async def gauges(self) -> dict[str, float]:
        """How things stand."""

    @abstractmethod
    def close(self) -> None:
        """End the engine and its processes."""

    # --- requests -----------------------------------------------------------------------------

    def begin(self, key: int | str, job: Job) -> Live:
        """Start a request, whose key is new; from now on it can be aborted."""
        self._count()
        live = self._live[key] = self.made(job)
        live.work = asyncio.ensure_future(self._consume(str(key), live))
        live.work.add_done_callback(lambda _: self._end(key, live))
        return live

    def made(self, job: Job) -> Live:
        """A request before its first token."""
        return Live(job)

    async def finish(self, live: Live) -> Completion:
        """Its response; an abort or the deadline gives what there is. Raises RolloutError."""
        assert live.work is not None, "begin() starts it"
        try:
            await asyncio.wait([live.work], timeout=live.job.deadline_s)
            if not live.work.done():
                live.work.cancel()
                await asyncio.wait([live.work])
        finally:
            live.work.cancel()
        if not live.work.cancelled() and (error := live.work.exception()) is not None:
            raise RolloutError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        return live.completion()

    def abort(self, key: int | str) -> None:
        """End a request; one that has ended is no error."""
        if key in self._live:
            self.stop(self._live[key])

    def stop(self, live: Live) -> None:
        """The same for one that is at hand."""
        if live.work is not None:
            live.work.cancel()

    # --- weights, pause, sleep ----------------------------------------------------------------

    async def load(self, version: int, path: str, entries: Any) -> None:
        """Take weights from a parcel; requests that run wait meanwhile, then go on with them.

        After a failure there is no version, and what ran has ended.
        """
        async with self._turn:
            held, self._held_back = self._held_back, True
            self._gate()
            try:
                await self.rouse(True, weights_only=True)
                await self.halt()  # tokens of the old version come until it stands still
                self.version = -1
                await self.replace(version, path, entries)
            except BaseException:
                self.version, self.loaded, self._held_back = -1, False, held
                await self._end_all()
                raise
            self.version, self.loaded = version, True
            self._held_back = held
            if not held:
                await self.go_on()
            self._gate()

    async def pause(self, mode: Literal["keep", "abort"]) -> None:
        """Stop between two tokens; with "abort" end what runs."""
        async with self._turn:
            self._held_back = True
            self._gate()
            await self.halt()
            if mode == "abort":
                await self._end_all()

    async def resume(self) -> None:
        """Go on."""
        async with self._turn:
            self._held_back = False
            await self.go_on()
            self._gate()

    async def sleep(self, level: int, real: bool) -> None:
        """End what runs and give memory back; see :meth:`release`."""
        async with self._turn:
            await self._end_all()
            await self.release(level, real)

    async def wake(self, real: bool) -> None:
        """Take the memory again; after level 2 the weights came with :meth:`load`."""
        async with self._turn:
            await self.rouse(real)

    async def stats(self) -> dict[str, float]:
        """Seconds with requests, and the engine's own counters."""
        self._count()
        return {"busy_s": self._busy_s, **self.counters()}

    # --- inside -------------------------------------------------------------------------------

    async def _consume(self, name: str, live: Live) -> None:
        await self._open.wait()
        await self.draw(name, live)

    def _end(self, key: int | str, live: Live) -> None:
        self._count()
        live.fresh.set()
        del self._live[key]

    def _gate(self) -> None:
        """Let requests to the engine, or hold them back."""
        self._count()
        if self._held_back:
            self._open.clear()
        else:
            self._open.set()

    async def _end_all(self) -> None:
        work = [live.work for live in self._live.values() if live.work is not None]
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)

    def _count(self) -> None:
        """Add the time since the last call if requests ran in it."""
        now = time.perf_counter()
        if self._live and self._open.is_set():
            self._busy_s += now - self._since
        self._since = now

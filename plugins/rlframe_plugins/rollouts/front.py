"""From one coroutine a request to an engine that steps all of them: futures, deadlines, pause."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from rlframe.errors import RlframeError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request

__all__ = ["Runner", "SteppedRollout"]


class Runner(Protocol):
    """What steps. It knows nothing of asyncio; a handle stands for one request."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def add(self, handle: Any) -> None:
        """Queue a request."""

    def step(self) -> Iterable[tuple[Any, Completion]]:
        """Go on by one token or batch; returns what ended."""

    def drop(self, handle: Any) -> Completion:
        """Forget a request; returns what it has, ``finish_reason='abort'``."""

    def reset(self) -> None:
        """Forget everything after an error."""


class SteppedRollout(RolloutEngine):
    """A :class:`RolloutEngine` over a :class:`Runner`.

    One task steps while there is work and yields to the loop between steps. The engine outlives
    event loops. An exception of a step reaches every open request as ``RolloutError``.
    """

    runner: Runner

    def __init__(self, config: Any, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._lock = threading.RLock()
        self._open: dict[Any, asyncio.Future[Completion]] = {}
        self._task: asyncio.Task[None] | None = None
        self._gate: asyncio.Future[None] | None = None
        self._paused = self._asleep = self._closed = False
        self._counters = {"requests": 0.0, "prompt_tokens": 0.0, "response_tokens": 0.0}
        self._busy_s = 0.0

    @abstractmethod
    def _handle(self, request: Request) -> Any:
        """Check a request and make its hashable handle, with the request as ``.request``."""

    async def generate(self, request: Request) -> Completion:
        """Queue the request and wait for its response."""
        if self._closed:
            raise RolloutError("the rollout engine is closed")
        if self._asleep:
            raise RolloutError("the rollout engine is asleep: call wake() before generate()")
        if self.version < 0:
            raise RolloutError("the rollout engine has no weights yet: call load() first")
        handle = self._handle(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        with self._lock:
            self._open[handle] = future
            self.runner.add(handle)
        timer = None
        if request.deadline_s is not None and request.deadline_s <= 0:
            self._end(handle)
        elif request.deadline_s is not None:
            timer = loop.call_later(request.deadline_s, self._end, handle)
        self._start(loop)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                if self._open.pop(handle, None) is not None:
                    self.runner.drop(handle)

    def abort(self, request_id: str) -> None:
        """End the requests of that id; an unknown one has ended before."""
        with self._lock:
            for handle in [h for h in self._open if h.request.request_id == request_id]:
                self._end(handle)

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Stop before the next step; requests keep waiting, or end with what they have."""
        with self._lock:
            self._paused = True
            if mode == "abort":
                for handle in list(self._open):
                    self._end(handle)

    def resume(self) -> None:
        """Go on."""
        with self._lock:
            self._paused = False
            self._release()

    def sleep(self, level: int = 1) -> None:
        """Step no more, refuse requests; a subclass gives memory back."""
        with self._lock:
            self._asleep = True

    def wake(self) -> None:
        """Step again."""
        with self._lock:
            self._asleep = False
            self._release()

    def stats(self) -> dict[str, float]:
        """Counters since the start: requests, tokens, and seconds in which it stepped."""
        return {**self._counters, "busy_s": self._busy_s}

    def close(self) -> None:
        """End every request and give the memory back."""
        self._closed = True
        self.pause("abort")
        self.sleep(2)

    # --- inside -------------------------------------------------------------------------------

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            for handle, future in list(self._open.items()):
                if future.get_loop().is_closed():
                    self._open.pop(handle)
                    self.runner.drop(handle)
        task = self._task
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = loop.create_task(self._run())
            self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        """Step until there is no work; lets callers of the same moment queue first."""
        me = asyncio.current_task()
        await asyncio.sleep(0)
        while self._task is me:
            if self._paused or self._asleep:
                self._gate = asyncio.get_running_loop().create_future()
                await self._gate
                continue
            with self._lock:
                if self._paused or self._asleep:  # by another thread, since it was looked at
                    continue
                if not self.runner.has_work:
                    self._task = None
                    return
                self._advance()
            await asyncio.sleep(0)

    def _advance(self) -> None:
        start = time.perf_counter()
        try:
            ended = list(self.runner.step())
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._busy_s += time.perf_counter() - start
        for handle, completion in ended:
            self._settle(handle, completion)

    def _settle(self, handle: Any, completion: Completion) -> None:
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(handle.request.prompt_ids)
        self._counters["response_tokens"] += len(completion.token_ids)
        future = self._open.pop(handle, None)
        if future is not None:
            _tell(future, lambda: future.set_result(completion))

    def _end(self, handle: Any) -> None:
        with self._lock:
            if handle in self._open:
                self._settle(handle, self.runner.drop(handle))

    def _fail(self, error: BaseException) -> None:
        """Give every open request the error, each its own instance."""
        name = type(self).__name__
        text = str(error) if isinstance(error, RlframeError) else f"{type(error).__name__}: {error}"
        with self._lock:
            futures = list(self._open.values())
            self._open.clear()
        for future in futures:
            failure = RolloutError(f"{name} failed in a step: {text}")
            failure.__cause__ = error
            _tell(future, lambda f=future, e=failure: f.set_exception(e))  # type: ignore[misc]
        with self._lock:
            self.runner.reset()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """No request may wait for a task that is gone (cancelled, or killed by a signal)."""
        if task is not self._task:
            return
        self._task = None
        died = None if task.cancelled() else task.exception()
        if task.cancelled() or died is not None:
            self._fail(died or RolloutError("its stepping task was cancelled"))

    def _release(self) -> None:
        if self._gate is not None and not (self._paused or self._asleep):
            gate, self._gate = self._gate, None
            _tell(gate, lambda: gate.set_result(None))


def _tell(future: asyncio.Future[Any], what: Callable[[], None]) -> None:
    """Settle a future in its own loop, from wherever this is called."""
    loop = future.get_loop()
    if loop.is_closed():
        return

    def settle() -> None:
        if not future.done():
            what()

    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        settle()
    else:
        loop.call_soon_threadsafe(settle)

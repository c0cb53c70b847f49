"""Coroutines on an event loop in a thread of its own: one that blocks holds nobody else."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rlframe.rewards.calls import TookTooLong, settle, within

__all__ = ["LoopThread"]

_ANSWER_S = 1.0
"""A loop that does not answer for so long after a time-out is blocked, seconds."""
_END_S = 1.0
"""Longest time in which cancelled coroutines may clean up when a loop ends, seconds."""


@dataclass(eq=False)
class _Visit:
    make: Callable[[], Awaitable[Any]]
    home: _Loop | None = None
    started: Future[None] = field(default_factory=Future)
    done: Future[Any] = field(default_factory=Future)


class LoopThread:
    """Runs coroutines together on one loop, which is a daemon thread's.

    The clock of a call starts when it does. A call that outlives its limit is cancelled; where it
    holds the loop (``time.sleep``) the loop is left behind with it, and a fresh one takes over the
    calls that wait. A call that swallows its cancellation is left alone: nobody waits for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._current: _Loop | None = None

    async def run(self, make: Callable[[], Awaitable[Any]], timeout_s: float | None) -> Any:
        """What ``make()``, called on the loop, comes to. Raises TookTooLong, or what it raised."""
        visit = _Visit(make)
        with self._lock:
            self._home().post(visit)
        try:
            await asyncio.wrap_future(visit.started)
            return await within(asyncio.wrap_future(visit.done), timeout_s)
        except TookTooLong:
            await self._leave_if_blocked(visit.home)
            raise
        finally:
            visit.done.cancel()

    def _home(self) -> _Loop:
        """The loop that takes calls; the lock is held."""
        if self._current is None or not self._current.thread.is_alive():
            self._current = _Loop(self._name)
            weakref.finalize(self, self._current.stop).atexit = False
        return self._current

    async def _leave_if_blocked(self, home: _Loop | None) -> None:
        if home is None or home is not self._current or await home.answers():
            return
        with self._lock:
            if home is not self._current:
                return
            self._current = None
            for visit in home.leave():
                self._home().post(visit)


class _Loop:
    """One thread with its loop, and the calls that it has not begun."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._waiting: dict[_Visit, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def post(self, visit: _Visit) -> None:
        with self._lock:
            visit.home = self
            self._waiting[visit] = None
        self._loop.call_soon_threadsafe(self._begin, visit)

    def leave(self) -> list[_Visit]:
        """End when the thread has a turn; returns the calls that another loop must take."""
        with self._lock:
            left, self._waiting = list(self._waiting), {}
        self.stop()
        return left

    def stop(self) -> None:
        self._ending = True
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:  # it is closed
            return

    async def answers(self) -> bool:
        """Whether the loop takes a turn within a second."""
        answer: Future[None] = Future()
        self._loop.call_soon_threadsafe(settle, answer, None, None)
        try:
            await within(asyncio.wrap_future(answer), _ANSWER_S)
        except TookTooLong:
            return False
        return True

    def _begin(self, visit: _Visit) -> None:
        with self._lock:
            if visit not in self._waiting:
                return
            del self._waiting[visit]
        if not visit.started.set_running_or_notify_cancel():
            return
        visit.started.set_result(None)
        task = self._loop.create_task(_outcome(visit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        visit.done.add_done_callback(lambda done: self._cancel(done, task))

    def _cancel(self, done: Future[Any], task: asyncio.Task[None]) -> None:
        """Called in whatever thread settled ``done``."""
        if not done.cancelled():
            return
        try:
            self._loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # the loop is closed
            return

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ending:
            try:
                self._loop.run_forever()
            except BaseException:  # sys.exit in a task that a reward started beside itself
                continue
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks, timeout=_END_S))
        self._loop.close()


async def _outcome(visit: _Visit) -> None:
    """Settle a call; never raises, but where it is cancelled."""
    try:
        result = await visit.make()
    except asyncio.CancelledError:
        settle(visit.done, None, RuntimeError("the reward cancelled itself, or its loop ended"))
        raise
    except BaseException as error:  # sys.exit is its outcome, not the end of our loop
        settle(visit.done, None, error)
    else:
        settle(visit.done, result, None)

"""Calling a user's function with a limit; a plain one in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FunctionThread", "TookTooLong", "settle", "within"]


class TookTooLong(TimeoutError):
    """Our own limit was reached, not one inside the user's function."""


async def within(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """What the awaitable comes to. Raises TookTooLong after ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await awaitable
    except TimeoutError as error:
        if limit.expired():
            raise TookTooLong from error
        raise


@dataclass
class _Job:
    call: Callable[[], Any]
    started: Future[None] = field(default_factory=Future)
    done: Future[Any] = field(default_factory=Future)


class FunctionThread:
    """Runs calls one after the other: a plain function need not be thread-safe.

    The clock of a call starts when it does. A call that outlives its limit is left behind with its
    thread, which is a daemon; a fresh thread takes over the waiting calls.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._owner: threading.Thread | None = None
        self._lock = threading.Lock()

    async def run(self, call: Callable[[], Any], timeout_s: float | None) -> Any:
        """The call's result. Raises TookTooLong, or what the call raised."""
        job = _Job(call)
        self._jobs.put(job)
        self._ensure_thread()
        try:
            await asyncio.wrap_future(job.started)
        except asyncio.CancelledError:
            job.started.cancel()
            raise
        try:
            return await within(asyncio.wrap_future(job.done), timeout_s)
        finally:
            if job.done.cancelled():
                self._abandon()

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._owner is None or not self._owner.is_alive():
                self._owner = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._owner.start()

    def _abandon(self) -> None:
        with self._lock:
            self._owner = None
        if not self._jobs.empty():
            self._ensure_thread()

    def _work(self) -> None:
        """Take calls until another thread has taken over."""
        me = threading.current_thread()
        while True:
            job = self._jobs.get()
            if self._owner is not me:
                self._jobs.put(job)
                return
            try:
                job.started.set_result(None)
            except InvalidStateError:
                continue
            try:
                result, error = job.call(), None
            except BaseException as caught:
                result, error = None, caught
            settle(job.done, result, error)
            del job, result, error
            if self._owner is not me:
                return


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the outcome, unless nobody waits for it any more."""
    if isinstance(error, StopIteration):
        # asyncio refuses it, and would leave everybody waiting.
        raised, error = error, RuntimeError(f"StopIteration: {error}")
        error.__cause__, error.__traceback__ = raised, raised.__traceback__
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return

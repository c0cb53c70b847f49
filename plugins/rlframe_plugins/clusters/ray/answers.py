"""Answers of calls: whoever waits for one waits in Ray itself, without a turn of an event loop.

Where nobody waits yet, Ray's own thread hands answers over. A bad or late one is looked into by
the resolver.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

import ray

from rlframe_plugins.clusters.ray.resolver import Resolver

__all__ = ["Answers"]

_TICK_S = 0.25

Finish = Callable[[dict[int, Any]], Any]
Settle = Callable[[float], Coroutine[Any, Any, Any]]


class Answers:
    """Of one crew. What is done when all have come must be quick: it may hold up other answers."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._keys = itertools.count()
        self._open: dict[int, _Outcome] = {}
        self._watching = False
        self._lock = threading.Lock()

    def gather(
        self, answers: Mapping[int, Any], bound_s: float, finish: Finish, settle: Settle
    ) -> Future[Any]:
        """``finish`` of all answers by rank.

        ``settle``, given the seconds that were waited, decides instead where an answer is an
        exception, or does not come within ``bound_s`` (0: it may take for ever).
        """
        key = next(self._keys)
        outcome = _Outcome(answers, bound_s, lambda: self._open.pop(key, None) is not None)
        outcome.finish = finish
        outcome.settle = lambda waited: self._resolver.submit(settle(waited))
        with self._lock:
            self._open[key] = outcome
            start, self._watching = not self._watching, True
        if start:
            self._resolver.submit(self._watch())
        return outcome

    async def _watch(self) -> None:
        """Listen for what nobody waits for, look into what is late, as long as any is open."""
        while True:
            with self._lock:
                if not self._open:
                    self._watching = False
                    return
            await asyncio.sleep(_TICK_S)
            for outcome in list(self._open.values()):
                outcome.listen()
                if time.monotonic() >= outcome.deadline:
                    outcome.look_into()


class _Outcome(Future[Any]):
    """``take`` is True once: for whoever decides what it is."""

    finish: Finish
    settle: Callable[[float], Future[Any]]

    def __init__(
        self, answers: Mapping[int, Any], bound_s: float, take: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._answers, self._take = dict(answers), take
        self._started = time.monotonic()
        self.deadline = self._started + bound_s if bound_s else float("inf")
        self._listening, self._once = False, threading.Lock()
        self._left = itertools.count(1)

    def result(self, timeout: float | None = None) -> Any:
        """See ``Future``."""
        started = time.monotonic()
        if not self._listening:
            self._wait_in_ray(_TICK_S if timeout is None else min(timeout, _TICK_S))
        if timeout is not None:
            timeout = max(timeout - (time.monotonic() - started), 0)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``Future``."""
        self.listen()
        return super().exception(timeout)

    def done(self) -> bool:
        """See ``Future``."""
        self.listen()
        return super().done()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """See ``Future``."""
        super().add_done_callback(fn)
        self.listen()

    def listen(self) -> None:
        """Have Ray's thread hand the answers over."""
        with self._once:
            listening, self._listening = self._listening, True
        if not listening:
            self._futures = {rank: ref.future() for rank, ref in self._answers.items()}
            for one in self._futures.values():
                one.add_done_callback(self._arrived)

    def look_into(self) -> None:
        """Let the resolver decide."""
        if self._take():
            settled = self.settle(time.monotonic() - self._started)
            settled.add_done_callback(lambda done: self._set(done.result))

    def _wait_in_ray(self, seconds: float) -> None:
        """Until the answers are here or one is bad; after some time Ray's thread takes over."""
        try:
            found = ray.get(list(self._answers.values()), timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            self.listen()
        except ray.exceptions.RayError:
            self.look_into()
        else:
            if self._take():
                by_rank = dict(zip(self._answers, found, strict=True))
                self._set(lambda: self.finish(by_rank))

    def _arrived(self, one: Future[Any]) -> None:
        if one.exception() is not None:
            self.look_into()
        elif next(self._left) == len(self._answers) and self._take():
            self._set(lambda: self.finish({r: f.result() for r, f in self._futures.items()}))

    def _set(self, found: Callable[[], Any]) -> None:
        try:
            self.set_result(found())
        except (Exception, CancelledError) as error:  # noqa: BLE001 - told to whoever waits
            self.set_exception(error)

"""Answers of calls, counted as Ray's own thread hands them over.

A good answer takes no turn of an event loop; a bad or late one is looked into by the resolver.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from rlframe_plugins.clusters.ray.resolver import Resolver

__all__ = ["Answers"]

_TICK_S = 0.25


class Answers:
    """Of one crew. What is done when all have come must be quick: it holds up other answers."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._keys = itertools.count()
        self._open: dict[int, tuple[float, Callable[[], None]]] = {}
        self._watching = False
        self._lock = threading.Lock()

    def gather(
        self,
        answers: Mapping[int, Any],
        bound_s: float,
        finish: Callable[[dict[int, Any]], Any],
        settle: Callable[[float], Coroutine[Any, Any, Any]],
    ) -> Future[Any]:
        """``finish`` of all answers by rank.

        ``settle``, given the seconds that were waited, decides instead where an answer is an
        exception, or does not come within ``bound_s`` (0: it may take for ever).
        """
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()
        futures = {rank: ref.future() for rank, ref in answers.items()}
        key, started, left = next(self._keys), time.monotonic(), itertools.count(1)

        def look_into() -> None:
            if self._open.pop(key, None) is not None:
                settled = self._resolver.submit(settle(time.monotonic() - started))
                settled.add_done_callback(lambda done: _pass_on(done, outcome))

        def arrived(one: Future[Any]) -> None:
            if one.exception() is not None:
                look_into()
            elif next(left) == len(futures) and self._open.pop(key, None) is not None:
                _set(outcome, lambda: finish({rank: f.result() for rank, f in futures.items()}))

        with self._lock:
            self._open[key] = (started + bound_s if bound_s else float("inf"), look_into)
            start, self._watching = not self._watching, True
        for one in futures.values():
            one.add_done_callback(arrived)
        if start:
            self._resolver.submit(self._watch())
        return outcome

    async def _watch(self) -> None:
        """Look into what is late, as long as anything is open."""
        while True:
            with self._lock:
                if not self._open:
                    self._watching = False
                    return
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for deadline, look_into in list(self._open.values()):
                if now >= deadline:
                    look_into()


def _pass_on(done: Future[Any], outcome: Future[Any]) -> None:
    _set(outcome, done.result)


def _set(outcome: Future[Any], found: Callable[[], Any]) -> None:
    try:
        outcome.set_result(found())
    except (Exception, CancelledError) as error:  # noqa: BLE001 - told to whoever waits
        outcome.set_exception(error)

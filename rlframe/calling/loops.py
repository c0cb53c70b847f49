"""Event loops: one that runs where it is called, and one with a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["OwnLoop", "ThreadLoop"]

T = TypeVar("T")


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


class ThreadLoop:
    """An event loop that goes on between calls, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result; what else was started goes on meanwhile."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it; to cancel the future is to cancel it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

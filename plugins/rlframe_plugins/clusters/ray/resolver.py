"""One thread that waits for all answers of all workers, on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["Resolver"]

T = TypeVar("T")


class Resolver:
    """Runs coroutines beside the caller; ``submit`` returns at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rlframe-answers", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; cancelled where that was closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            cancelled: Future[T] = Future()
            cancelled.cancel()
            return cancelled

    def close(self) -> None:
        """Cancel what still waits, and end the thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            waiting = asyncio.all_tasks(self._loop)
            for task in waiting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        finally:
            self._loop.close()

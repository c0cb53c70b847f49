"""Inside a worker: requests played on one event loop, completions collected for each client."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

from rlframe.errors import EngineError, RlframeError

__all__ = ["Serving"]


class Serving:
    """Many requests at once; one queue of what has ended a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: dict[str, queue.SimpleQueue[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, engine: Any, client: str, requests: list[Any]) -> None:
        """Start ``(key, request)`` pairs, all in one turn of the loop so that they batch."""
        ended = self._queue(client)

        def start() -> None:
            for key, request in requests:
                task = asyncio.ensure_future(_play(engine, key, request, ended))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._running().call_soon_threadsafe(start)

    def stream(self, client: str) -> Iterator[list[Any]]:
        """Lists of ``(key, completion or exception)``, whatever has ended since the last one."""
        ended = self._queue(client)
        while True:
            found = [ended.get()]
            while not ended.empty():
                found.append(ended.get())
            yield found

    def _queue(self, client: str) -> queue.SimpleQueue[Any]:
        with self._lock:
            return self._ended.setdefault(client, queue.SimpleQueue())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="rlframe-serving", daemon=True
                ).start()
            return self._loop


async def _play(engine: Any, key: int, request: Any, ended: queue.SimpleQueue[Any]) -> None:
    try:
        ended.put((key, await engine.generate(request)))
    except RlframeError as error:
        ended.put((key, error))
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        ended.put((key, EngineError(f"{type(engine).__name__}: {type(error).__name__}: {error}")))

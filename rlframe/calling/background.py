"""One call in a thread of its own, whose result or exception is asked for later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["BackgroundCall"]

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Begins ``call()`` at once, in a daemon thread that is named ``name``."""

    def __init__(self, call: Callable[[], T], name: str = "rlframe-background") -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def result(self) -> T:
        """Wait for its end: what it gave, or what it raised."""
        return self._future.result()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._future.set_exception(error)

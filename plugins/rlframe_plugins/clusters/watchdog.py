"""A call in this process that takes too long: its stacks are shown and it is ended."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlframe.recovery.stacks import all_stacks

__all__ = ["TooLate", "Watchdog"]


class _Interrupt(BaseException):
    """Raised inside the late call."""


class TooLate(Exception):
    """A call passed its limit; ``stacks`` is where every thread was."""

    def __init__(self, limit_s: float, stacks: str) -> None:
        super().__init__(limit_s, stacks)
        self.limit_s, self.stacks = limit_s, stacks


class Watchdog:
    """Watches one call at a time from a thread of its own, which starts with the first.

    A late call is interrupted where it next runs Python code; native code is only shown.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._stacks = ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Bound what runs inside. Raises TooLate."""
        if not self._limit_s:
            yield
            return
        try:
            try:
                self._begin()
                yield
            finally:
                self._end()
        except _Interrupt:
            raise TooLate(self._limit_s, self._stacks) from None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _begin(self) -> None:
        with self._changed:
            self._watched = threading.get_ident()
            self._deadline = time.monotonic() + self._limit_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rlframe-watchdog", daemon=True
                )
                self._thread.start()

    def _end(self) -> None:
        with self._changed:
            self._deadline = None

    def _run(self) -> None:
        with self._changed:
            while self._thread is threading.current_thread():
                if self._deadline is None or self._deadline > time.monotonic():
                    # A call that begins meanwhile ends later than this wait: none need wake it.
                    now = time.monotonic()
                    self._changed.wait((self._deadline or now + self._limit_s) - now)
                    continue
                self._deadline = None
                self._stacks = all_stacks()
                print(
                    f"a call is not done after {self._limit_s:g} s; stacks of all threads:\n"
                    f"{self._stacks}",
                    file=sys.stderr,
                    flush=True,
                )
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._watched), ctypes.py_object(_Interrupt)
                )

"""An asyncio event loop whose clock jumps: to sleep costs no time, and a deadlock is an error."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_in_virtual_time"]

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where nothing is ready, time passes at once."""

    loop: _VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: every task waits for another one")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own. Raises RuntimeError where nothing can go on."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)

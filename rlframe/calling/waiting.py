"""Waiting for many pieces of work at once: all of them, some of them, or enough of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

__all__ = ["cancelled", "enough_of", "gather", "some_of"]

T = TypeVar("T")


async def some_of(
    playing: set[asyncio.Task[T]], at_least: int, wait_s: float
) -> set[asyncio.Task[T]]:
    """The tasks that are done, after ``at_least`` are or ``wait_s`` have passed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    await asyncio.sleep(0)
    while True:
        ended = {task for task in playing if task.done()}
        left = until - loop.time()
        failed = any(task.exception() is not None for task in ended)
        if failed or len(ended) >= min(at_least, len(playing)) or left <= 0:
            return ended
        await asyncio.wait(playing - ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the rest and is raised itself."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await cancelled(tasks)
        raise


async def enough_of(
    work: Sequence[Coroutine[Any, Any, T]], counted: Sequence[bool], enough: int
) -> list[T | None]:
    """Results in order, None for what was cancelled: ``enough`` of those counted had ended.

    What is not counted is always waited for. The first failure cancels the rest and is raised.
    """
    if enough >= sum(counted):
        return [*await gather(work)]
    tasks = [asyncio.ensure_future(one) for one in work]
    needed = {task for task, counts in zip(tasks, counted, strict=True) if not counts}
    open_tasks = set(tasks)
    ended: set[asyncio.Task[T]] = set()
    try:
        while needed - ended or len(ended - needed) < min(enough, len(tasks) - len(needed)):
            done, open_tasks = await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)
            ended |= done
            for task in done:
                task.result()
        first = [task for task in tasks if task in ended and task not in needed][:enough]
        wanted = needed | set(first)
        return [task.result() if task in wanted else None for task in tasks]
    finally:
        await cancelled(tasks)


async def cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

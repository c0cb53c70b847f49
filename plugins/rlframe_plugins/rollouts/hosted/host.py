"""The process that holds an engine for one worker: ``python -m MODULE SOCKET FOLDER``.

It leads a process group of its own, and a guard watches what it starts. Requests come over an
inherited socket; when that closes everything is killed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rlframe import RlframeError, RolloutError
from rlframe_plugins.rollouts.hosted.core import HostedCore
from rlframe_plugins.rollouts.hosted.frames import HEAD, framed, length_of, opened
from rlframe_plugins.rollouts.hosted.mortal import end_with, guarded

__all__ = ["Host", "hold"]


class Host:
    """Answers the messages ``(number, verb, arguments)``, each as soon as it is done.

    ``make_core`` starts the engine from its arguments; ``name`` is the engine's for users.
    """

    def __init__(
        self,
        name: str,
        make_core: Callable[[Mapping[str, Any]], HostedCore],
        writer: asyncio.StreamWriter,
    ) -> None:
        self._name, self._make, self._writer = name, make_core, writer
        self._core: HostedCore | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the worker says that it is over."""
        while True:
            size = length_of(await reader.readexactly(HEAD))
            number, verb, arguments = opened(await reader.readexactly(size))
            if verb == "abort":
                self._held.abort(arguments[0])
                continue
            if verb == "close":
                if self._core is not None:
                    self._core.close()
                self._say(number, "done", None)
                await self._writer.drain()
                return
            task = asyncio.ensure_future(self._answer(number, self._do(number, verb, arguments)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _held(self) -> HostedCore:
        assert self._core is not None, "start comes first"
        return self._core

    async def _answer(self, number: int, done: Awaitable[Any]) -> None:
        try:
            self._say(number, "done", await done)
        except RlframeError as error:
            self._say(number, "failed", str(error))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self._say(number, "failed", f"{self._name}: {type(error).__name__}: {error}")

    def _do(self, number: int, verb: str, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Begin at once, so that an abort in the next message finds its request."""
        if verb == "start":
            return self._start(*arguments)
        if verb == "generate":
            return self._held.finish(self._held.begin(number, *arguments))
        doing: Awaitable[Any] = getattr(self._held, verb)(*arguments)
        return doing

    async def _start(self, arguments: Mapping[str, Any]) -> Mapping[str, float]:
        if self._core is not None:
            raise RolloutError("the engine has started already")
        self._core = self._make(arguments)
        return await self._core.stats()

    def _say(self, number: int, how: str, value: Any) -> None:
        self._writer.write(framed((number, how, value)))


def hold(name: str, make_core: Callable[[Mapping[str, Any]], HostedCore]) -> None:
    """What the module does when it is run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    peer, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    guard = guarded(folder)
    end_with(peer)

    async def serve() -> None:
        reader, writer = await asyncio.open_connection(sock=peer)
        await Host(name, make_core, writer).serve(reader)

    asyncio.run(serve())
    del guard

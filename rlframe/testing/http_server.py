"""A small real HTTP server in a thread, to stand for a service in tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

from rlframe.calling.loops import ThreadLoop

__all__ = ["Denied", "HttpServer"]


class Denied(Exception):  # noqa: N818 - an answer
    """Answer with this status and JSON body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


class HttpServer:
    """Subclass with :meth:`answer`. ``url`` is where it listens; ``open`` counts connections.

    A client that closes its connection cancels the answer that runs for it.
    """

    def __init__(self, name: str = "fake") -> None:
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path and body of each request."""
        self.open = 0
        self._loop = ThreadLoop(f"rlframe-{name}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._server, self.port = self._loop.run(self._start())
        self.url = f"http://127.0.0.1:{self.port}"

    async def answer(self, method: str, path: str, body: Any) -> Any:
        """JSON to send (None: nothing), or an async iterator of events. May raise ``Denied``."""
        raise Denied(404, {"error": f"no {path}"})

    def submit(self, work: Any) -> Future[Any]:
        """Run a coroutine on the server's loop."""
        return self._loop.submit(work)

    def die(self) -> None:
        """Cut every connection and listen no more, as a killed process does."""
        self._loop.run(self._die())

    def rise(self) -> None:
        """Listen again after :meth:`die`, at the same address."""
        self._server, self.port = self._loop.run(self._start(self.port))

    def close(self) -> None:
        """End it."""
        self.die()
        self._loop.close()

    async def _start(self, port: int = 0) -> tuple[asyncio.Server, int]:
        self._dead = False
        server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, backlog=1024, reuse_address=True
        )
        return server, int(server.sockets[0].getsockname()[1])

    async def _die(self) -> None:
        self._server.close()
        self._dead = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._dead:  # it was accepted before, and would live on
            writer.transport.abort()
            return
        self._tasks.add(task)
        self.open += 1
        try:
            early = b""
            while (more := await self._one(reader, writer, early)) is not None:
                early = more
        except (OSError, EOFError, asyncio.CancelledError):
            return
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes
    ) -> bytes | None:
        """One request and its answer; what came after it, or None where the client is gone."""
        head = (early + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        names = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in head[1:] if h)}
        data = await reader.readexactly(int(names.get("content-length", 0)))
        body = json.loads(data) if data else None
        self.asked.append((method, path, body))
        answering = asyncio.ensure_future(self._answer(method, path, body, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not gone.result():
                return None
            await answering
        finally:
            await _cancelled(answering)
            await _cancelled(gone)
        return gone.result() if gone.done() and not gone.cancelled() else b""

    async def _answer(
        self, method: str, path: str, body: Any, writer: asyncio.StreamWriter
    ) -> None:
        try:
            found = await self.answer(method, path, body)
        except Denied as denied:
            _plain(writer, denied.status, denied.body)
        else:
            if isinstance(found, AsyncIterator):
                await _events(writer, found)
            else:
                _plain(writer, 200, found)
        await writer.drain()


def _plain(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)


async def _events(writer: asyncio.StreamWriter, events: AsyncIterator[Any]) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    writer.write(head.encode() + b"\r\n\r\n")
    async with contextlib.aclosing(events) as rest:  # type: ignore[type-var]
        async for event in rest:
            _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
            await writer.drain()
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait for its end."""
    if not task.done():
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)

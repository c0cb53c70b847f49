"""A small HTTP/1.1 server on loopback, on the loop that it is started from."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

__all__ = ["Answer", "Asked", "HttpServer"]

_HEAD_BYTES = 64 * 1024
_BODY_BYTES = 64 * 2**20
_IDLE_S = 600.0


@dataclass(frozen=True)
class Asked:
    """A request: header names in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """JSON with a status, or server-sent events where ``events`` is given."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    events: AsyncIterator[str] | None = None


Handler = Callable[[Asked], Awaitable[Answer]]


class HttpServer:
    """Answers by ``handler``; ``port`` is chosen by the system."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen on 127.0.0.1."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=_HEAD_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listen no more, and end the connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            with contextlib.suppress(OSError):
                writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays open."""
        try:
            asked = await asyncio.wait_for(_read(reader, writer), _IDLE_S)
        except (ValueError, asyncio.LimitOverrunError) as error:
            await _write(writer, Answer(HTTPStatus.BAD_REQUEST, {"error": {"message": str(error)}}))
            return False
        if asked is None:
            return False
        await _write(writer, await self._handler(asked))
        return asked.headers.get("connection", "").lower() != "close"


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    """The next request, None at the end. Raises ValueError for what is no HTTP."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise ValueError(f"no request line: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _chunks(reader)
    else:
        size = int(headers.get("content-length", "0") or "0")
        if not 0 <= size <= _BODY_BYTES:
            raise ValueError(f"a body of {size} bytes")
        body = await reader.readexactly(size)
    return Asked(words[0], words[1].partition("?")[0], headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readline()).split(b";")[0], 16):
        if len(body) + size > _BODY_BYTES:
            raise ValueError("a body that is too large")
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return bytes(body)


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    status = HTTPStatus(answer.status)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
    if answer.events is None:
        body = json.dumps(answer.body).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode("latin-1") + body)
        await writer.drain()
        return
    head += "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode("latin-1"))
    async for event in answer.events:
        part = f"data: {event}\n\n".encode()
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()

"""JSON to and from one server: limits, retries before the first byte, errors that name the address.

``ask`` gives one reply, ``events`` a stream of server-sent events. A caller that stops (deadline,
cancellation) closes its connection, by which the server notices and drops the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rlframe import RolloutError
from rlframe_plugins.rollouts.http.connection import (
    Address,
    Broken,
    Connections,
    Reply,
    Unreachable,
)
from rlframe_plugins.rollouts.replicas import ReplicaLost

__all__ = ["HttpClient", "HttpOptions", "Refused", "ServerGone"]

_AGAIN = (429, 502, 503, 504)
"""What a server, or a proxy before it, answers to a request that it did not take."""
_LONGEST = 64 * 2**20
_SHOWN = 300
_END_S = 1.0


class ServerGone(ReplicaLost):
    """The server cannot be reached, or its connection broke: another one may answer."""


class Refused(RolloutError):
    """The server answered that it will not: ``status`` is HTTP's, of 400 and above."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class HttpOptions:
    """How a server is asked. Seconds; ``token`` is sent as a bearer token where it is not empty."""

    connect_s: float = 10.0
    """Longest wait for a connection."""
    retries: int = 4
    """Further tries where no byte of a reply came, at least 0."""
    backoff_s: float = 0.2
    """Wait before the second try; doubled for each further one, at most 10."""
    token: str = ""


class HttpClient:
    """One server, asked from one event loop. ``url`` may have a path, put before all others."""

    def __init__(self, url: str, options: HttpOptions | None = None) -> None:
        self.url = url.rstrip("/")
        self._options = options or HttpOptions()
        self._connections = Connections(Address.parse(url), self._options.connect_s)

    async def ask(
        self, method: str, path: str, body: Any = None, limit_s: float | None = None
    ) -> Any:
        """The reply's JSON, its text where it is none, None where it is empty.

        Raises Refused for a status of 400 and above, ServerGone where no reply came in time.
        """
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._send(method, path, body)
                data = await self._read(reply, path)
        except TimeoutError as error:
            raise self._gone(path, f"did not answer within {limit_s:g} s") from error
        if not data:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return data.decode(errors="replace")

    async def events(
        self, path: str, body: Any, idle_s: float | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON objects of a stream of server-sent events, up to ``[DONE]`` or its end.

        Close the iterator (``contextlib.aclosing``) to end the request early. Raises Refused,
        RolloutError for what is no event, and ServerGone where the stream breaks or is silent for
        ``idle_s``.
        """
        reply = await self._send("POST", path, body, {"Accept": "text/event-stream"}, idle_s)
        rest, parts = _Lines(), reply.parts()
        try:
            while True:
                async with asyncio.timeout(idle_s):
                    part = await anext(parts, b"")
                if not part:
                    return
                for line in rest.after(part):
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        await _to_the_end(parts)
                        return
                    yield self._event(path, data)
                if rest.size > _LONGEST:
                    self._wrong(path, f"sent an event of more than {_LONGEST} bytes")
        except TimeoutError as error:
            raise self._gone(path, f"was silent for {idle_s:g} s") from error
        except Broken as error:
            raise self._gone(path, f"broke off ({error})") from error
        finally:
            await parts.aclose()

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        more: Mapping[str, str] | None = None,
        head_s: float | None = None,
    ) -> Reply:
        """The head of a good reply; again where no byte of one came.

        ``head_s`` bounds the wait for it.
        """
        data = b"" if body is None else self._encoded(path, body)
        headers = {"Content-Type": "application/json", "Accept": "application/json", **(more or {})}
        if self._options.token:
            headers["Authorization"] = f"Bearer {self._options.token}"
        for left in range(self._options.retries, -1, -1):
            try:
                async with asyncio.timeout(head_s):
                    reply = await self._connections.send(method, path, headers, data)
            except TimeoutError as error:
                raise self._gone(path, f"was silent for {head_s:g} s") from error
            except Unreachable as error:
                if not left:
                    raise self._gone(path, f"cannot be reached ({error})") from error
            except Broken as error:
                raise self._gone(path, f"broke off ({error})") from error
            else:
                if reply.status not in _AGAIN or not left:
                    return await self._good(reply, path)
                reply.close()
            await self._wait(self._options.retries - left)
        raise AssertionError("the last try returns or raises")

    def _encoded(self, path: str, body: Any) -> bytes:
        try:
            return json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RolloutError(f"{self.url}{path} cannot be asked in JSON: {error}") from error

    async def _wait(self, tries: int) -> None:
        wait = min(self._options.backoff_s * 2**tries, 10.0)
        await asyncio.sleep(wait * random.uniform(0.75, 1.25))

    async def _good(self, reply: Reply, path: str) -> Reply:
        if reply.status < 300:
            return reply
        body = await self._read(reply, path)
        text = f"answered {reply.status} {reply.reason}: {self._shown(body)}"
        if reply.status in (401, 403):
            text += " (the token is read from the variable that token_env names)"
        if 300 <= reply.status < 400:
            text += f" (it has moved to {reply.headers.get('location')})"
        raise Refused(f"{self.url}{path} {text}", reply.status)

    async def _read(self, reply: Reply, path: str) -> bytes:
        try:
            return await reply.read(_LONGEST)
        except Broken as error:
            raise self._gone(path, f"broke off ({error})") from error

    def _event(self, path: str, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._wrong(path, f"sent an event that is no JSON object: {self._shown(data)}")
        if "error" in value and value["error"] is not None:
            self._wrong(path, f"broke off with an error: {self._shown(data)}")
        return value

    def _wrong(self, path: str, what: str) -> NoReturn:
        raise RolloutError(f"{self.url}{path} {what}")

    def _gone(self, path: str, what: str) -> ServerGone:
        return ServerGone(f"{self.url}{path} {what}")

    def _shown(self, body: bytes) -> str:
        """The start of a reply; a server may repeat what it was sent."""
        text = body.decode(errors="replace")
        if self._options.token:
            text = text.replace(self._options.token, "***")
        return repr(" ".join(text.split())[:_SHOWN])


class _Lines:
    """Lines of what comes in parts; ``size`` bytes wait for the end of theirs."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.size = 0

    def after(self, part: bytes) -> list[bytes]:
        """Those that this part ends."""
        self._rest.append(part)
        if b"\n" not in part:
            self.size += len(part)
            return []
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest, self.size = [rest], len(rest)
        return lines


async def _to_the_end(parts: AsyncGenerator[bytes, None]) -> None:
    """Read the end that follows ``[DONE]``, so that the connection can be used again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await anext(parts, b"")

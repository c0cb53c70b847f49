"""HTTP/1.1 to one server over asyncio: connections kept open, bodies read as they come.

Small on purpose: no redirects, no proxies, no cookies, no compression. What a caller stops reading
is closed, so that the server notices and drops the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Address", "Broken", "Connections", "Reply", "Unreachable"]

_HEAD = 65536
"""Longest head of a reply, bytes."""
_CHUNK = 65536
_IDLE = 64
"""Idle connections that are kept."""


class Unreachable(Exception):  # noqa: N818 - a state of the server, told on as RolloutError
    """The connection failed before the first byte of a reply: the request may be sent again."""


class Broken(Exception):  # noqa: N818 - a state of the server, told on as RolloutError
    """The connection failed within a reply, or the reply is no HTTP."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the path before all its own."""

    host: str
    port: int
    tls: bool = False
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """From ``http://host:port/path``. Raises ValueError, also for a password in it."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"must be an address like http://host:8000, not {url!r}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(f"must hold no user, password or query: {parts.hostname}")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Connections:
    """Connections to one server, of one event loop. Not for several threads."""

    def __init__(self, address: Address, connect_s: float) -> None:
        self._address, self._connect_s = address, connect_s
        self._idle: list[_Connection] = []

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The head of the reply; its body is read from it. Raises Unreachable or Broken."""
        connection = self._take() or await self._open()
        address = self._address
        lines = [
            f"{method} {address.path}{path} HTTP/1.1",
            f"Host: {address.authority}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        try:
            connection.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            await connection.writer.drain()
            head = await _head(connection.reader)
            return Reply(self, connection, *head, bodiless=method == "HEAD")
        except (OSError, EOFError) as error:
            connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    def give_back(self, connection: _Connection) -> None:
        """Keep a connection whose reply was read to its end."""
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.close()
        return None

    async def _open(self) -> _Connection:
        address = self._address
        try:
            async with asyncio.timeout(self._connect_s):
                context = ssl.create_default_context() if address.tls else None
                opening = asyncio.open_connection(
                    address.host, address.port, ssl=context, limit=_HEAD
                )
                return _Connection(*await opening)
        except TimeoutError as error:
            raise Unreachable(f"no connection within {self._connect_s:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error


@dataclass(eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed, and it with that
            self.writer.transport.abort()


class Reply:
    """Status, headers (names in lower case), and a body that is read once."""

    def __init__(
        self,
        home: Connections,
        connection: _Connection,
        status: int,
        reason: str,
        headers: Mapping[str, str],
        bodiless: bool,
    ) -> None:
        self.status, self.reason, self.headers = status, reason, headers
        self._home, self._connection = home, connection
        self._bodiless = bodiless or status in (204, 304)

    async def read(self, most: int) -> bytes:
        """The body. Raises Broken, also where it is longer than ``most`` bytes."""
        parts, size = list[bytes](), 0
        async for part in self.parts():
            size += len(part)
            if size > most:
                raise Broken(f"a reply of more than {most} bytes")
            parts.append(part)
        return b"".join(parts)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises Broken. Closes the connection unless read to the end."""
        whole = False
        try:
            async for part in self._body():
                yield part
            whole = True
        except (OSError, EOFError, ValueError) as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        finally:
            keep = self.headers.get("connection", "").lower() != "close" and self._ends
            if whole and keep:
                self._home.give_back(self._connection)
            else:
                self._connection.close()

    def close(self) -> None:
        """Close the connection: the server may stop."""
        self._connection.close()

    @property
    def _chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def _ends(self) -> bool:
        """Whether the end of the body can be told from the end of the connection."""
        return self._bodiless or self._chunked or "content-length" in self.headers

    async def _body(self) -> AsyncGenerator[bytes, None]:
        reader = self._connection.reader
        if self._bodiless:
            return
        if self._chunked:
            while size := int((await _line(reader)).partition(b";")[0], 16):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
            while await _line(reader):
                pass
            return
        if "content-length" not in self.headers:
            while part := await reader.read(_CHUNK):
                yield part
            return
        left = int(self.headers["content-length"])
        while left:
            part = await reader.read(min(left, _CHUNK))
            if not part:
                raise EOFError(f"{left} bytes of the reply are missing")
            left -= len(part)
            yield part


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the reply ends in the middle")
    return line.strip()


async def _head(reader: asyncio.StreamReader) -> tuple[int, str, dict[str, str]]:
    """Status, reason and headers. Raises EOFError before the first byte, Broken after it."""
    while True:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise
            raise Broken("the reply ends within its head") from error
        except asyncio.LimitOverrunError as error:
            raise Broken("the reply's head is too long") from error
        version, _, rest = lines[0].partition(" ")
        status, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
            raise Broken(f"no HTTP: {lines[0][:80]!r}")
        if int(status) >= 200:  # those below come before the reply
            pairs = (line.partition(":") for line in lines[1:] if line)
            return int(status), reason, {name.lower(): text.strip() for name, _, text in pairs}

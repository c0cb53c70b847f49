"""Asking an HTTP service: limits, retries, and errors that name the address, never a secret."""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rlframe import RewardError
from rlframe.config import check_range
from rlframe.rewards.calls import TookTooLong, settle, within
from rlframe.rewards.loops import LoopThread

__all__ = ["Endpoint", "ServiceConfig", "check_url"]

_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""What a server answers when the same request may do later."""
_CHUNK, _LONGEST_REPLY = 65536, 64 * 2**20
_SHOWN = 300


@dataclass(frozen=True)
class ServiceConfig:
    """How a service is asked; options of the rewards that ask one."""

    token_env: str = ""
    """Name of the environment variable with the service's token; empty sends none."""
    limit_s: float = 30.0
    """Longest time of one try, seconds, above 0."""
    retries: int = 4
    """Further tries after one that failed in a way that may pass, at least 0."""
    backoff_s: float = 0.5
    """Wait before the second try, seconds; doubled for each further one."""
    longest_wait_s: float = 30.0
    """Longest wait before a try, seconds; a server that asks for more is an error."""
    per_second: float | None = None
    """Requests that start in a second at most; null is no limit."""
    concurrency: int = 8
    """Requests under way at a time, at least 1."""

    def __post_init__(self) -> None:
        """Check; raises ValueError."""
        check_range(self, "limit_s", above=0)
        check_range(self, "retries", 0)
        check_range(self, "backoff_s", 0)
        check_range(self, "longest_wait_s", 0)
        check_range(self, "per_second", above=0)
        check_range(self, "concurrency", 1)


def check_url(url: str, field: str) -> None:
    """Raise ValueError unless it is an address of HTTP without a password in it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{field} must be an address like http://host:port/path, not {url!r}")
    if parts.username or parts.password:
        raise ValueError(f"{field} holds a user or a password: name a variable in token_env")


class Endpoint:
    """One address of a service. ``name`` is the reward's, for messages."""

    def __init__(self, name: str, url: str, config: ServiceConfig) -> None:
        self._name, self.url, self._config = name, url, config
        self._loop = LoopThread(f"reward {name}")
        self._turns: asyncio.Semaphore | None = None
        self._next = 0.0
        """No request starts before this time of the monotonic clock."""

    def check(self) -> None:
        """Raises RewardError where the token's variable is not set."""
        self._token()

    async def post(self, body: Any) -> Any:
        """Send JSON, return the reply's. Raises RewardError naming the address and the fault."""
        data = self._encoded(body)
        return await self._loop.run(lambda: self._post(data), None)

    async def _post(self, data: bytes) -> Any:
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._config.concurrency)
        async with self._turns:
            for number in range(self._config.retries + 1):
                await self._wait_for_turn()
                try:
                    return self._decoded(await self._try(data))
                except _Passing as error:
                    if number == self._config.retries:
                        tries = f"after {number + 1} {'try' if number == 0 else 'tries'}"
                        raise self.error(f"{error}, {tries}") from error
                    self._delay(error, number)
        raise AssertionError("the last try returns or raises")

    async def _wait_for_turn(self) -> None:
        rate = self._config.per_second
        while (wait := self._next - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        if rate is not None:
            self._next = time.monotonic() + 1 / rate

    def _delay(self, error: _Passing, number: int) -> None:
        """No request starts for a while: what one is told, is told to all."""
        wait = min(self._config.backoff_s * 2**number, self._config.longest_wait_s)
        if error.wait_s is not None:
            wait = error.wait_s
        if wait > self._config.longest_wait_s:
            raise self.error(
                f"{error} and asks to wait {wait:g} seconds, more than longest_wait_s="
                f"{self._config.longest_wait_s:g}"
            ) from error
        self._next = max(self._next, time.monotonic() + wait)

    async def _try(self, data: bytes) -> bytes:
        """The body of a good reply. Raises _Passing, or RewardError for what will not pass."""
        done: Future[bytes] = Future()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url, data, headers, method="POST")
        threading.Thread(
            target=_exchange, args=(request, self._config.limit_s, done), daemon=True
        ).start()
        try:
            body: bytes = await within(asyncio.wrap_future(done), self._config.limit_s)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (TookTooLong, TimeoutError) as error:
            raise _Passing(f"did not answer within limit_s={self._config.limit_s:g}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _Passing(f"cannot be reached: {type(error).__name__}: {reason}") from error
        return body

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        text = f"answered {error.code} {error.reason}: {self._shown(getattr(error, 'told', b''))}"
        if error.code in _AGAIN:
            return _Passing(text, _seconds(error.headers.get("Retry-After")))
        if error.code in (401, 403):
            text += " (the token is read from the variable that token_env names)"
        if 300 <= error.code < 400:
            text += f" (it has moved to {error.headers.get('Location')})"
        return self.error(text)

    def _decoded(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise self.error(f"answered no JSON: {self._shown(body)}") from error

    def _encoded(self, body: Any) -> bytes:
        try:
            return json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RewardError(
                f"reward '{self._name}': a column cannot be sent as JSON ({error}): list those to "
                "send in the reward's columns"
            ) from error

    def _token(self) -> str:
        name = self._config.token_env
        if not name:
            return ""
        if not os.environ.get(name):
            raise RewardError(
                f"reward '{self._name}': the environment variable {name}, which token_env names, "
                f"is not set: export {name}=..."
            )
        return os.environ[name].strip()

    def _shown(self, body: bytes) -> str:
        """The start of a reply; a server may repeat what it was sent."""
        text = body.decode(errors="replace")
        token = self._token()
        if token:
            text = text.replace(token, "***")
        return repr(" ".join(text.split())[:_SHOWN])

    def error(self, text: str) -> RewardError:
        """An error that names the address."""
        return RewardError(f"{self.url} {text}")


class _Passing(Exception):
    """A failure that may pass; ``wait_s`` is what the server asks for."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would drop the body and take the token elsewhere."""

    def redirect_request(self, *arguments: Any) -> None:
        """Give none, which makes the reply an error."""


def _exchange(request: urllib.request.Request, limit_s: float, done: Future[bytes]) -> None:
    """One request, in a thread of its own; what it comes to goes to ``done``."""
    deadline = time.monotonic() + limit_s
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=limit_s) as reply:
            body = _all(reply, deadline)
    except urllib.error.HTTPError as error:
        try:
            error.told = error.read(_CHUNK)  # type: ignore[attr-defined]
            error.close()
        except (OSError, http.client.HTTPException):  # it closed before it told more
            error.told = b""  # type: ignore[attr-defined]
        settle(done, None, error)
    except BaseException as error:
        settle(done, None, error)
    else:
        settle(done, body, None)


def _all(reply: Any, deadline: float) -> bytes:
    parts, size = [], 0
    while part := reply.read1(_CHUNK):
        size += len(part)
        if time.monotonic() > deadline:
            raise TimeoutError
        if size > _LONGEST_REPLY:
            raise RewardError(f"a reply of more than {_LONGEST_REPLY} bytes")
        parts.append(part)
    if reply.length:
        raise http.client.IncompleteRead(b"", reply.length)
    return b"".join(parts)


def _seconds(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks to wait: a number, or a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None

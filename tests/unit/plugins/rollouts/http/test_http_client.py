"""The HTTP client against real sockets: what is retried, what a caller's end does, what is said."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rlframe.errors import RolloutError
from rlframe.testing.http_server import Denied, HttpServer
from rlframe_plugins.rollouts.http.client import HttpClient, HttpOptions, Refused, ServerGone

QUICK = HttpOptions(connect_s=5.0, retries=2, backoff_s=0.001)


class Echo(HttpServer):
    """Says what it was asked; some paths misbehave."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.sent = 0
        self.busy = 0
        super().__init__("echo")

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/busy":
            self.busy += 1
            if self.busy < 3:
                raise Denied(503, {"error": "later"})
        if path == "/wrong":
            raise Denied(422, {"error": "no such model, secret-token"})
        if path == "/silent":
            await asyncio.sleep(60)
        if path in ("/count", "/endless"):
            return self.counted(3 if path == "/count" else 10**9)
        return {"method": method, "path": path, "body": body}

    async def counted(self, most: int) -> AsyncIterator[dict[str, int]]:
        try:
            for number in range(most):
                self.sent = number
                yield {"n": number}
                await asyncio.sleep(0.001)
        finally:
            self.cancelled.set()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


async def events(client: HttpClient, path: str, most: int = 10**9) -> list[int]:
    found = []
    async with contextlib.aclosing(client.events(path, {})) as stream:
        async for event in stream:
            found.append(event["n"])
            if len(found) == most:
                break
    return found


def test_json_goes_there_and_back_over_one_connection(echo: Echo) -> None:
    async def go() -> None:
        client = HttpClient(echo.url + "/v1/", QUICK)
        for number in range(5):
            got = await client.ask("POST", "/x", {"ids": [number] * 30_000})
            assert got == {"method": "POST", "path": "/v1/x", "body": {"ids": [number] * 30_000}}
        assert echo.open == 1
        client.close()

    asyncio.run(go())


def test_a_stream_ends_and_its_connection_is_used_again(echo: Echo) -> None:
    async def go() -> None:
        client = HttpClient(echo.url, QUICK)
        for _ in range(3):
            assert await events(client, "/count") == [0, 1, 2]
        assert echo.open == 1

    asyncio.run(go())


def test_to_stop_reading_a_stream_ends_it_at_the_server(echo: Echo) -> None:
    async def go() -> None:
        client = HttpClient(echo.url, QUICK)
        assert await events(client, "/endless", most=4) == [0, 1, 2, 3]
        assert await asyncio.to_thread(echo.cancelled.wait, 10)

    asyncio.run(go())


def test_a_cancelled_caller_ends_its_request_at_the_server(echo: Echo) -> None:
    async def go() -> None:
        client = HttpClient(echo.url, QUICK)
        task = asyncio.create_task(events(client, "/endless"))
        while not echo.sent:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(echo.cancelled.wait, 10)

    asyncio.run(go())


def test_a_client_that_does_not_read_holds_no_other(echo: Echo) -> None:
    async def go() -> None:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.get_running_loop().run_in_executor(
                None, lazy.connect, ("127.0.0.1", echo.port)
            )
            lazy.sendall(b"POST /endless HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            client = HttpClient(echo.url, QUICK)
            for _ in range(20):
                assert await events(client, "/count") == [0, 1, 2]
        assert await asyncio.to_thread(echo.cancelled.wait, 10)

    asyncio.run(go())


def test_a_busy_server_is_asked_again(echo: Echo) -> None:
    got = asyncio.run(HttpClient(echo.url, QUICK).ask("GET", "/busy"))
    assert got["method"] == "GET"
    assert echo.busy == 3


def test_a_refusal_names_address_status_and_text_but_no_token(echo: Echo) -> None:
    options = HttpOptions(token="secret-token")
    with pytest.raises(Refused, match=r"/wrong answered 422 .*no such model, \*\*\*") as told:
        asyncio.run(HttpClient(echo.url, options).ask("POST", "/wrong", {}))
    assert told.value.status == 422
    assert [path for _, path, _ in echo.asked] == ["/wrong"]


def test_a_silent_server_is_given_up(echo: Echo) -> None:
    with pytest.raises(ServerGone, match=r"/silent did not answer within 0.05 s"):
        asyncio.run(HttpClient(echo.url, QUICK).ask("GET", "/silent", limit_s=0.05))


def test_where_nobody_listens_says_so_after_the_retries() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ServerGone, match=r"/x cannot be reached \(ConnectionRefused"):
            asyncio.run(HttpClient(url, QUICK).ask("GET", "/x"))


def raw(*replies: bytes) -> tuple[str, list[int], threading.Thread]:
    """A server that answers its n-th connection with these bytes and closes it."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[int] = []

    def serve() -> None:
        with server:
            for reply in replies:
                one, _ = server.accept()
                with one:
                    seen.append(len(one.recv(65536)))
                    one.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{server.getsockname()[1]}", seen, thread


GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"n": 12}'


def test_a_connection_that_closes_before_the_first_byte_is_tried_again() -> None:
    url, seen, thread = raw(b"", b"", GOOD)
    assert asyncio.run(HttpClient(url, QUICK).ask("POST", "/x", {})) == {"n": 12}
    thread.join(5)
    assert len(seen) == 3


@pytest.mark.parametrize("cut", [5, 30, len(GOOD) - 3])
def test_a_reply_that_breaks_off_is_not_tried_again(cut: int) -> None:
    url, seen, thread = raw(GOOD[:cut])
    with pytest.raises(ServerGone, match="broke off"):
        asyncio.run(HttpClient(url, QUICK).ask("POST", "/x", {}))
    thread.join(5)
    assert len(seen) == 1


def test_a_stream_that_breaks_off_gives_what_came_and_then_the_error() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    url, _, thread = raw(head + b'c\r\ndata: {"n": 7}\n\n\r\n'.replace(b"c", b"10", 1) + b"5\r\nda")

    found = []

    async def go() -> None:
        async for event in HttpClient(url, QUICK).events("/x", {}):
            found.append(event["n"])

    with pytest.raises(ServerGone, match="/x broke off"):
        asyncio.run(go())
    assert found == [7]
    thread.join(5)


@pytest.mark.parametrize(
    ("event", "message"),
    [(b"data: {oops\n\n", "no JSON object"), (b'data: {"error": {"message": "full"}}\n\n', "full")],
)
def test_an_event_that_is_none_is_an_error(event: bytes, message: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(event)
    url, _, thread = raw(head + event)

    async def go() -> None:
        async for _ in HttpClient(url, QUICK).events("/x", {}):
            pass

    with pytest.raises(RolloutError, match=message):
        asyncio.run(go())
    thread.join(5)


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://me:pw@x", "http://x?q=1"])
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must"):
        HttpClient(url)


def test_hundreds_at_once_are_each_answered(echo: Echo) -> None:
    async def go() -> list[Any]:
        client = HttpClient(echo.url, QUICK)
        return await asyncio.gather(*[client.ask("POST", "/x", n) for n in range(300)])

    assert [got["body"] for got in asyncio.run(go())] == list(range(300))

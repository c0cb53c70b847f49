"""Servers that answer what is no response: each request gets one error, which names the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.http_server import HttpServer
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.http import client as http_client
from rlframe_plugins.rollouts.http.client import HttpClient, HttpOptions, ServerGone
from rlframe_plugins.rollouts.openai.engine import OpenAIRollout
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from rlframe_plugins.rollouts.vllm.servers import VLLMServers
from tests.unit.plugins.rollouts.http.test_http_client import raw

ASKED = Request((5, 9), Sampling(max_new_tokens=4))
STOP = {"type": "stop"}
NAN = float("nan")
QUICK = {"retries": 0, "check_s": 0.05, "limit_s": 30.0, "wait_s": 30.0}


class Odd(HttpServer):
    """Answers whatever is asked for tokens with ``events``, and everything else well."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        super().__init__("odd")

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path.endswith(("/generate", "/completions")):
            return self._stream()
        return {"success": True, "version": 1, "weight_version": "1"}

    async def _stream(self) -> AsyncIterator[Any]:
        for event in self.events:
            yield event


@pytest.fixture(scope="module")
def odd() -> Iterator[Odd]:
    server = Odd()
    yield server
    server.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return char_tokenizer(tiny_model(tmp_path_factory.mktemp("odd") / "model"))


def made(path: Path, kind: Any, url: str, **options: Any) -> RolloutEngine:
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    engine: RolloutEngine = kind(kind.Config(url=(url,), **QUICK, **options), spec)
    if kind.takes_weights:
        engine.load(1, RolloutReference(path).tensors())
    return engine


def told(engine: RolloutEngine, odd: Odd, *events: Any) -> str:
    """The error of a request that is answered so."""
    odd.events = list(events)
    with pytest.raises(RolloutError) as error:
        asyncio.run(engine.generate(ASKED))
    return str(error.value)


def sglang(ids: Any = (5,), finish: Any = STOP, **meta: Any) -> dict[str, Any]:
    count = len(ids) if isinstance(ids, tuple) else 1
    plain = {
        "completion_tokens": count,
        "finish_reason": finish,
        "weight_version": "1",
        "output_token_logprobs": [[-1.0, 5, None]] * count,
    }
    return {"output_ids": ids, "meta_info": {**plain, **meta}}


SGLANG = [
    ([1, 2], "no JSON object"),
    ({"output_ids": [1]}, "meta_info"),
    (sglang(("a",)), "'a' where a token id is due"),
    (sglang((-3,)), "-3 where a token id is due"),
    (sglang((1.5,)), "1.5 where a token id is due"),
    (sglang((99999,)), "token id 99999, outside of the model's 0 to"),
    (sglang(None), "cannot be read"),
    (sglang(output_token_logprobs=[[NAN, 5, None]]), "log-probability that is no number"),
    (sglang(output_token_logprobs=[[None, 5, None]]), "cannot be read"),
    (sglang(output_token_logprobs=[]), "0 of their log-probabilities for 1 new tokens"),
    (sglang(completion_tokens="x"), "cannot be read"),
    (sglang(completion_tokens=10**12), "for 1000000000000 new tokens"),
    (sglang(weight_versions=[{"version": "1", "start": None, "end": 1}]), "cannot be read"),
    (sglang(finish="stop"), "cannot be read"),
    (sglang(finish={"type": "boom"}), "the reason 'boom'"),
    (sglang((5,) * 9), "more tokens than it was asked for"),
    ({"error": {"message": "out of memory"}}, "out of memory"),
]


def chat(**choice: Any) -> dict[str, Any]:
    return {"choices": [choice]}


OPENAI = [
    ({"choices": {"a": 1}}, "no response: KeyError"),
    ({"choices": ["x"]}, "no response: AttributeError"),
    (chat(delta=None), "no response: AttributeError"),
    (chat(delta={"content": "a"}, finish_reason={"a": 1}), "no response: TypeError"),
    (chat(delta={"content": "a"}, finish_reason="boom"), "the reason 'boom'"),
    (chat(delta={"content": "\ud800"}, finish_reason="stop"), "no response: TypeError"),
    (chat(delta={"content": "a" * 6000}), "more than 5000 characters"),
]
TOKENS = [
    (chat(token_ids=["a"], finish_reason="stop"), "'a' where a token id is due"),
    (chat(token_ids=[5] * 9, finish_reason="stop"), "more tokens than"),
    (chat(token_ids=[5], logprobs={"token_logprobs": [None]}), "no response: TypeError"),
    (chat(token_ids=[5], logprobs="x"), "no response: AttributeError"),
]


def vllm(**other: Any) -> dict[str, Any]:
    return {"token_ids": [5], "logprobs": [-1.0], "versions": [1], "finish": "stop", **other}


VLLM = [
    (vllm(versions=["a"]), "version of weights that is no number"),
    (vllm(versions=[]), "1 tokens, 1 log-probabilities and 0 versions"),
    (vllm(logprobs=["a"]), "log-probability that is no number"),
    (vllm(token_ids=5), "an event without tokens"),
    (vllm(finish=7), "the reason '7'"),
]
KINDS: dict[str, tuple[Any, dict[str, Any], list[tuple[Any, str]]]] = {
    "sglang": (SGLangRollout, {}, SGLANG),
    "openai chat": (OpenAIRollout, {"model": "m"}, OPENAI),
    "openai ids": (OpenAIRollout, {"model": "m", "api": "ids"}, TOKENS),
    "vllm-server": (VLLMServers, {}, VLLM),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_response_is_told_once(name: str, path: Path, odd: Odd) -> None:
    """And the next request is served."""
    kind, options, cases = KINDS[name]
    engine = made(path, kind, odd.url, **options)
    for event, message in cases:
        found = told(engine, odd, event)
        assert message in found, found
        assert odd.url in found or "a server" in found
    good = {"openai chat": chat(delta={"content": "a"}, finish_reason="stop")}
    good |= {"openai ids": chat(token_ids=[5], finish_reason="stop")}
    odd.events = [good.get(name, sglang() if name == "sglang" else vllm())]
    got: Completion = asyncio.run(engine.generate(ASKED))
    assert len(got.token_ids) == 1
    engine.close()


def test_a_lost_request_says_what_its_last_server_did(path: Path, odd: Odd) -> None:
    engine = made(path, SGLangRollout, odd.url)
    found = told(engine, odd)
    assert "lost its replica 6 times" in found
    assert found.endswith("ended a response without a reason")
    engine.close()


HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", ServerGone, "no HTTP"),
        ("HTTP/1.1 \u00b2\u00b2 OK\r\n\r\n".encode("latin-1"), ServerGone, "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", ServerGone, "too long"),
        (HEAD.replace(b"Connection: close", b"Content-Length: five"), ServerGone, "broke off"),
        (HEAD.replace(b"Connection: close", b"Content-Length: -5"), ServerGone, "broke off"),
        (HEAD + b"data: " + b"[" * 200_000 + b"\n\n", RolloutError, "no JSON object"),
        (HEAD + b"data: " + b"x" * 3000, RolloutError, "event of more than 2000 bytes"),
    ],
    ids=["ssh", "status", "head", "length", "negative", "deep", "long"],
)
def test_what_is_no_http_is_an_error(
    reply: bytes, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "bytes" in message:
        monkeypatch.setattr(http_client, "_LONGEST", 2000)
    url, _, thread = raw(reply)

    async def go() -> None:
        async for _ in HttpClient(url, HttpOptions(retries=0)).events("/x", {}, 30.0):
            pass

    with pytest.raises(error, match=message):
        asyncio.run(go())
    thread.join(5)


def test_a_server_that_takes_a_request_and_says_nothing_is_given_up() -> None:
    """Not even the head of a reply comes."""

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(quiet, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            with pytest.raises(ServerGone, match=r"was silent for 0\.05 s"):
                async for _ in HttpClient(url, HttpOptions(retries=3)).events("/x", {}, 0.05):
                    pass

    asyncio.run(go())

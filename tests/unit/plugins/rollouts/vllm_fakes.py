"""What stands for vLLM in tests: an engine that draws 10, 11, 12, ... and a server over it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

from rlframe.testing.http_server import Denied, HttpServer
from rlframe_plugins.rollouts.vllm.core import Core
from rlframe_plugins.rollouts.vllm.gauges import Gauges
from rlframe_plugins.rollouts.vllm.routes import Routes


class FakeEngine:
    """Of vLLM's AsyncLLM what Core uses; a token is drawn when ``gate`` has a permit."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.told: list[object] = []
        self.prompts: list[dict] = []
        self.ended: list[str] = []
        self.drawn = 0
        self.breaks, self.slow = False, None

    async def generate(self, prompt, parameters, request_id):
        self.prompts.append(prompt)
        try:
            for number in range(parameters["max_tokens"]):
                await self.gate.acquire()
                if self.breaks:
                    raise ValueError("no more")
                self.drawn += 1
                last = number + 1 == parameters["max_tokens"]
                yield output(10 + number, "length" if last else None)
        finally:
            self.ended.append(request_id)

    def __getattr__(self, name):
        async def call(*arguments, **more):
            self.told.append((name, *arguments, *more.values()))
            if name == "collective_rpc" and self.slow is not None:
                await self.slow.wait()
            if name == "collective_rpc" and self.breaks:
                raise ValueError("no more")
            return [64 if name == "collective_rpc" else None]

        return call


def output(token, reason):
    logprobs = [{token: SimpleNamespace(logprob=-token / 10)}]
    one = SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason=reason)
    return SimpleNamespace(outputs=[one], finished=reason is not None)


class FakeTokenizer:
    """A letter a token, from "a" for 10."""

    def decode(self, ids, **_):
        return "".join(chr(ord("a") + token - 10) for token in ids)


class FakeRoutes(Routes):
    """Routes over a fake engine, whose token and folder a test may set."""

    make_core = staticmethod(lambda engine: Core(engine, dict, FakeTokenizer, Gauges()))


class FakeServer(HttpServer):
    """vLLM's server with rlframe's routes, over real HTTP."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.routes = FakeRoutes(None)
        self.metrics = ""
        """What vLLM itself shows at /metrics; empty: nothing."""
        super().__init__("fake-vllm")

    async def answer(self, method, path, body):
        if path == "/metrics":
            if not self.metrics:
                raise Denied(404, {"detail": "Not Found"})
            return self.metrics
        scope = scope_of(path, self.engine)
        sent: asyncio.Queue = asyncio.Queue()
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        work = asyncio.ensure_future(self.routes(scope, receive, sent.put))
        head = await sent.get()
        if head["headers"][0][1] == b"application/json":
            found = json.loads((await sent.get())["body"])
            if head["status"] != 200:
                raise Denied(head["status"], found)
            return found
        return _events(sent, gone, work)


async def _events(sent, gone, work):
    try:
        while (text := (await sent.get())["body"].decode()) != "data: [DONE]\n\n":
            yield json.loads(text.removeprefix("data: "))
    finally:
        gone.set()
        await work


def scope_of(path, engine, headers=()):
    """Of a request to a server over ``engine``."""
    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    return {"type": "http", "path": path, "headers": list(headers), "app": app}

"""The policy as an OpenAI-compatible server on loopback, an episode to each key."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rlframe_plugins.envs.tools.asked import RefusedError
from rlframe_plugins.envs.tools.http_server import Answer, Asked, HttpServer
from rlframe_plugins.envs.tools.session import Said, Session

__all__ = ["MODEL", "Endpoint"]

MODEL = "policy"
_CHAT, _MODELS = "/v1/chat/completions", "/v1/models"


class Endpoint:
    """Serves every open session; started with the first, on the loop that asks."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._server: HttpServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock | None = None

    async def open(self, session: Session) -> tuple[str, str]:
        """Serve a session; the address, and the key that it is known by."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.close()
            self._loop, self._starting = loop, asyncio.Lock()
        assert self._starting is not None
        async with self._starting:
            if self._server is None:
                server = HttpServer(self._answer)
                await server.start()
                self._server = server
        key = f"sk-episode-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        return f"http://127.0.0.1:{self._server.port}/v1", key

    def shut(self, key: str) -> None:
        """Serve a session no more."""
        self._sessions.pop(key, None)

    def close(self) -> None:
        """Stop the server, unless its loop is gone already."""
        server, self._server = self._server, None
        if server is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(server.close)

    async def _answer(self, asked: Asked) -> Answer:
        session = self._session(asked.headers.get("authorization", ""))
        if session is None:
            return _refusal(401, "invalid_api_key", "this key is of no running episode")
        if asked.method == "GET" and asked.path == _MODELS:
            return Answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if asked.method != "POST" or asked.path != _CHAT:
            return _refusal(404, "not_found", f"{asked.method} {asked.path}: there is {_CHAT}")
        try:
            payload = json.loads(asked.body)
        except (ValueError, RecursionError) as error:
            return _refusal(400, "invalid_json", str(error))
        if not isinstance(payload, dict):
            return _refusal(400, "invalid_json", "the body must be an object")
        try:
            said = await session.complete(payload)
        except RefusedError as error:
            return _refusal(error.status, error.code, error.message)
        except Exception as error:  # the episode raises it itself
            return _refusal(500, "engine_error", f"{type(error).__name__}: {error}")
        return _completion(said, payload)

    def _session(self, authorization: str) -> Session | None:
        given = authorization.removeprefix("Bearer ").strip().encode()
        for key, session in self._sessions.items():
            if hmac.compare_digest(key.encode(), given):
                return session
        return None


def _refusal(status: int, code: str, message: str) -> Answer:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Answer(status, {"error": {"message": message, "type": kind, "code": code}})


def _completion(said: Said, payload: Mapping[str, Any]) -> Answer:
    count = len(said.done.token_ids)
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": payload.get("model", MODEL),
    }
    usage = {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": count,
        "total_tokens": said.prompt_tokens + count,
    }
    if payload.get("stream"):
        options = payload.get("stream_options") or {}
        return Answer(
            200, events=_events(said, head, usage if options.get("include_usage") else None)
        )
    choice: dict[str, Any] = {
        "index": 0,
        "message": said.message,
        "finish_reason": said.finish_reason,
        "logprobs": None,
    }
    if payload.get("logprobs"):
        pairs = zip(said.done.token_ids, said.done.logprobs, strict=True)
        content: list[dict[str, Any]] = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in pairs
        ]
        choice["logprobs"] = {"content": content}
    body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return Answer(200, body)


async def _events(
    said: Said, head: Mapping[str, Any], usage: Mapping[str, Any] | None
) -> AsyncIterator[str]:
    """The answer as a stream, which has it whole in one piece."""
    delta = dict(said.message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": n, **c} for n, c in enumerate(delta["tool_calls"])]
    base = {**head, "object": "chat.completion.chunk"}
    for part, reason in ((delta, None), ({}, said.finish_reason)):
        choice = {"index": 0, "delta": part, "finish_reason": reason}
        yield json.dumps({**base, "choices": [choice]})
    if usage is not None:
        yield json.dumps({**base, "choices": [], "usage": usage})
    yield "[DONE]"

"""What a vLLM server answers for rlframe, beside OpenAI's routes: tokens, versions, weights.

Everything is below ``/rlframe/`` and takes JSON. ``generate`` answers with server-sent events
``{"token_ids", "logprobs", "versions", "finish"}``; a client that hangs up ends its request.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlframe import RlframeError, RolloutError
from rlframe.serving import check_version
from rlframe_plugins.rollouts.hosted.core import Live
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.vllm.core import Core

__all__ = ["Routes"]

Message = Mapping[str, Any]
_MEMORY = re.compile(r"/proc/\d+/fd/\d+")
_LONGEST = 64 * 2**20


class Routes:
    """An ASGI middleware, which vLLM makes around its app; see ``serve``."""

    token: ClassVar[str] = ""
    """What clients must send as a bearer token; empty asks for none."""
    folder: ClassVar[str] = ""
    """Folder below which weights may be read, besides the memory of this machine's processes."""
    make_core: ClassVar[Callable[[Any], Core]]
    """From vLLM's engine to ours."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._core: Core | None = None

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer what is ours, pass on the rest."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith("/rlframe/"):
            await self._app(scope, receive, send)
            return
        if not self._allowed(scope):
            await _reply(send, 401, {"error": "a token is needed"})
            return
        if self._core is None:
            self._core = type(self).make_core(scope["app"].state.engine_client)
        try:
            body = await _body(receive)
            verb = path.removeprefix("/rlframe/")
            if verb == "generate":
                await self._generate(self._core, body, receive, send)
                return
            await _reply(send, 200, await self._do(self._core, verb, body))
        except (RlframeError, KeyError, TypeError, ValueError) as error:
            await _reply(send, 400, {"error": f"{type(error).__name__}: {error}"})

    def _allowed(self, scope: Message) -> bool:
        if not self.token:
            return True
        headers = dict(scope["headers"])
        sent = headers.get(b"authorization", b"")
        return hmac.compare_digest(sent, f"Bearer {self.token}".encode())

    def _do(self, core: Core, verb: str, body: Message) -> Awaitable[Any]:
        if verb == "load":
            self._check_path(str(body["path"]))
            check_version(body["version"])
            return core.load(body["version"], str(body["path"]), _entries(body["entries"]))
        if verb == "pause":
            return core.pause("abort" if body["mode"] == "abort" else "keep")
        if verb == "sleep":
            return core.sleep(int(body["level"]), bool(body["real"]))
        if verb == "wake":
            return core.wake(bool(body["real"]))
        if verb == "resume":
            return core.resume()
        if verb == "stats":
            return _stats(core)
        raise RolloutError(f"there is no /rlframe/{verb}")

    def _check_path(self, path: str) -> None:
        if _MEMORY.fullmatch(path):
            return
        if not self.folder or not Path(path).resolve().is_relative_to(Path(self.folder).resolve()):
            raise RolloutError(
                f"{path} is not below the folder for weights: start the server with --weights-dir"
            )

    async def _generate(self, core: Core, body: Message, receive: Any, send: Any) -> None:
        if not core.loaded:
            raise RolloutError("the server has no weights of a run yet")
        live = core.begin(uuid.uuid4().hex, _job(body))
        assert live.work is not None, "begin() starts it"
        gone = asyncio.ensure_future(_hung_up(receive))
        gone.add_done_callback(lambda _: core.stop(live))
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _stream(core, live, send)
        finally:
            gone.cancel()
            core.stop(live)


def _job(body: Message) -> Job:
    """Raises RolloutError for what would reach the engine that others share."""
    prompt, sampling, stop = body["prompt_ids"], body["sampling"], body["stop"]
    if not isinstance(prompt, list) or not prompt or not all(map(_is_count, prompt)):
        raise RolloutError("prompt_ids must be a list of token ids, one at least")
    if not isinstance(sampling, dict):
        raise RolloutError("sampling must be an object")
    if not isinstance(stop, list) or not all(isinstance(one, str) and one for one in stop):
        raise RolloutError("stop must be a list of texts")
    return Job(tuple(prompt), sampling, tuple(stop), int(body["min_new_tokens"]))


def _entries(found: Any) -> list[Any]:
    """Tensors of a parcel. Raises RolloutError before the weights that serve are given up."""
    if not isinstance(found, list) or not found:
        raise RolloutError("entries must be a list of tensors")
    for one in found:
        name, dtype, shape, start = one
        texts = isinstance(name, str) and isinstance(dtype, str)
        if not (texts and all(map(_is_count, [*shape, start]))):
            raise RolloutError(f"an entry is a name, a type, a shape and a start, not {one}")
    return list(found)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


async def _stream(core: Core, live: Live, send: Any) -> None:
    """Tokens as they come, then the reason or the error."""
    sent, ended = 0, False
    while not ended:
        await live.fresh.wait()
        live.fresh.clear()
        ended = live.work is not None and live.work.done()
        event: dict[str, Any] = {
            "token_ids": live.ids[sent:],
            "logprobs": live.logprobs[sent:],
            "versions": live.versions[sent:],
            "finish": None,
        }
        sent = len(live.ids)
        if ended:
            try:
                event["finish"] = (await core.finish(live)).finish_reason
            except RolloutError as error:
                event = {"error": str(error)}
        if ended or event["token_ids"]:
            await _write(send, f"data: {json.dumps(event)}\n\n", more=True)
    await _write(send, "data: [DONE]\n\n", more=False)


async def _stats(core: Core) -> dict[str, float]:
    return {"version": core.version, **await core.stats()}


async def _body(receive: Any) -> Message:
    data = b""
    while True:
        message = await receive()
        data += message.get("body", b"")
        if len(data) > _LONGEST:
            raise ValueError(f"a request of more than {_LONGEST} bytes")
        if not message.get("more_body"):
            break
    try:
        found = json.loads(data) if data else {}
    except RecursionError as error:
        raise ValueError("a request's body is too deep") from error
    if not isinstance(found, dict):
        raise TypeError("a request's body must be a JSON object")
    return found


async def _hung_up(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _reply(send: Any, status: int, value: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _write(send, json.dumps(value), more=False)


async def _write(send: Any, text: str, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

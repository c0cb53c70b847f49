"""Inside an environment's process: one object of the user's class, and calls of its methods."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from rlframe_plugins.envs.tools.wire import MOST_BYTES, receive, send

__all__ = ["TooLongError", "Worker", "serve"]

_AGAIN_S = 0.25
"""After so long a call that caught the end of its time is told again."""


class TooLongError(BaseException):
    """A call took longer than it may; no ``except Exception`` of the user's catches it."""


def serve(connection: socket.socket, user: type[Any]) -> None:
    """Answer the driver until it ends the episode."""
    worker, own = Worker(user), os.getpid()
    while (message := receive(connection)) is not None:
        name, arguments = pickle.loads(message)
        try:
            reply = getattr(worker, name)(**arguments)
        except Exception as error:
            reply = {"error": told(error), "where": place_of(error)}
        if os.getpid() != own:
            os._exit(0)  # a child that the user's code forked came back: it has no say
        send(connection, _json(reply))


class Worker:
    """The driver's commands."""

    def __init__(self, user: type[Any]) -> None:
        self._user = user
        self._loop: asyncio.AbstractEventLoop | None = None
        self._env: Any = None

    def reset(self, columns: Mapping[str, Any], seed: int, seconds: float) -> dict[str, Any]:
        """Make the object and begin: its first messages, None where it has none."""
        random.seed(seed)

        def begin() -> Any:
            self._env = self._user()
            start = getattr(self._env, "reset", None)
            return None if start is None else start(**_wanted(start, columns))

        return {**self._timed(begin, {}, seconds), "pid": os.getpid()}

    def call(
        self, name: str, arguments: Mapping[str, Any], seconds: float, most: int
    ) -> dict[str, Any]:
        """Call a tool: its text, cut to ``most`` characters, or what it raised."""
        reply = self._timed(getattr(self._env, name), arguments, seconds)
        if "value" in reply:
            text = _text(reply["value"])
            reply["value"] = text if len(text) <= most else _cut(text, most)
            reply["cut"] = len(text) > most
        return reply

    def step(self, text: str, seconds: float, most: int) -> dict[str, Any]:
        """Answer a message without calls: the next messages, or None to end."""
        reply = self._timed(self._env.step, {"": text}, seconds)
        if isinstance(reply.get("value"), str) and len(reply["value"]) > most:
            reply["value"], reply["cut"] = _cut(reply["value"], most), True
        return reply

    def after_turn(self) -> dict[str, Any]:
        """Whether it is over, and the turn's reward, which an attribute then loses."""
        earned = getattr(self._env, "turn_reward", None)
        if callable(earned):
            earned = earned()
        elif earned is not None:
            self._env.turn_reward = 0.0
        return {"done": bool(getattr(self._env, "done", False)), "earned": _number(earned)}

    def reward(self, seconds: float) -> dict[str, Any]:
        """What the episode has earned: a method's value, or an attribute."""
        earned = getattr(self._env, "reward", None)
        reply = self._timed(earned, {}, seconds) if callable(earned) else {"value": earned}
        return _with_numbers(reply)

    def run(self, columns: Mapping[str, Any], url: str, key: str, seed: int) -> dict[str, Any]:
        """Run the user's own program against the endpoint; what it returns is the reward."""
        from rlframe_plugins.envs.tools.client import make_client

        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=key)
        random.seed(seed)
        self._env = self._user()
        client = make_client(url, key)
        return _with_numbers(self._timed(self._env.run, {"": client, "row": dict(columns)}, 0.0))

    def _timed(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Call, for so many seconds (0: any), and tell what came of it."""
        started = time.monotonic()
        positional = [arguments[""]] if "" in arguments else []
        named = {key: value for key, value in arguments.items() if key}
        try:
            value = self._limited(lambda: function(*positional, **named), seconds)
        except TooLongError:
            return {"late": True, "seconds": time.monotonic() - started}
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            spent = time.monotonic() - started
            return {"error": told(error), "where": place_of(error), "seconds": spent}
        return {"value": value, "seconds": time.monotonic() - started}

    def _limited(self, call: Callable[[], Any], seconds: float) -> Any:
        armed = True

        def ring(number: int, frame: FrameType | None) -> None:
            if armed:
                raise TooLongError

        previous = signal.signal(signal.SIGALRM, ring)
        try:
            try:
                if seconds > 0:
                    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
                value = call()
                if inspect.isawaitable(value):
                    value = self._finish(value)
            finally:
                armed = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
        return value

    def _finish(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(wait())


def told(error: BaseException) -> str:
    """Kind and message of what a user's code raised."""
    return f"{type(error).__name__}: {str(error)[:2000]}"


def place_of(error: BaseException) -> str:
    """File and line of what a user's code raised, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _wanted(function: Callable[..., Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a function names, or all where it takes any."""
    parameters = inspect.signature(function).parameters
    if any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
        return dict(columns)
    return {name: columns[name] for name in parameters if name in columns}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _cut(text: str, most: int) -> str:
    return f"{text[:most]}\n[{len(text) - most} more characters were cut]"


def _with_numbers(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply whose value, or whose parts, are numbers of Python's."""
    value = reply.get("value")
    if isinstance(value, Mapping):
        reply["value"] = {str(name): _number(part) for name, part in value.items()}
    elif value is not None:
        reply["value"] = _number(value)
    return reply


def _number(value: Any) -> Any:
    """A number of any library as Python's; what is none stays, and is told of."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if callable(getattr(value, "item", None)):
        return value.item()
    return value


def _json(reply: dict[str, Any]) -> bytes:
    try:
        payload = json.dumps(reply).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        what = f"{type(reply.get('value')).__name__} cannot be sent: {error}"
        payload = json.dumps({"error": what, "where": ""}).encode()
    if len(payload) > MOST_BYTES:
        what = f"{len(payload)} bytes are more than an environment may answer"
        payload = json.dumps({"error": what, "where": ""}).encode()
    return payload

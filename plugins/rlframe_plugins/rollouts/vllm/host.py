"""The process that holds a vLLM engine for one worker: ``python -m ...host SOCKET FOLDER``.

It leads a process group of its own, and a guard watches what it starts. Requests come over an
inherited socket; when that closes everything is killed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlframe import RlframeError, RolloutError
from rlframe_plugins.rollouts.vllm.core import Core
from rlframe_plugins.rollouts.vllm.frames import HEAD, framed, length_of, opened
from rlframe_plugins.rollouts.vllm.gauges import Gauges
from rlframe_plugins.rollouts.vllm.mortal import end_with, guarded

__all__ = ["make_core"]


def make_core(arguments: Mapping[str, Any]) -> Core:
    """Start vLLM's engine, which takes half a minute. Raises what vLLM raises."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    gauges = Gauges()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[gauges])

    @cache
    def tokenizer() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(arguments["model"], trust_remote_code=False)

    def parameters(values: Mapping[str, Any]) -> Any:
        return SamplingParams(output_kind=RequestOutputKind.DELTA, **values)

    return Core(engine, parameters, tokenizer, gauges)


class Host:
    """Answers the messages ``(number, verb, arguments)``, each as soon as it is done."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._core: Core | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the worker says that it is over."""
        while True:
            size = length_of(await reader.readexactly(HEAD))
            number, verb, arguments = opened(await reader.readexactly(size))
            if verb == "abort":
                self._held.abort(arguments[0])
                continue
            if verb == "close":
                if self._core is not None:
                    self._core.close()
                self._say(number, "done", None)
                await self._writer.drain()
                return
            task = asyncio.ensure_future(self._answer(number, self._do(number, verb, arguments)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _held(self) -> Core:
        assert self._core is not None, "start comes first"
        return self._core

    async def _answer(self, number: int, done: Awaitable[Any]) -> None:
        try:
            self._say(number, "done", await done)
        except RlframeError as error:
            self._say(number, "failed", str(error))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self._say(number, "failed", f"vLLM: {type(error).__name__}: {error}")

    def _do(self, number: int, verb: str, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Begin at once, so that an abort in the next message finds its request."""
        if verb == "start":
            return self._start(*arguments)
        if verb == "generate":
            return self._held.finish(self._held.begin(number, *arguments))
        doing: Awaitable[Any] = getattr(self._held, verb)(*arguments)
        return doing

    async def _start(self, arguments: Mapping[str, Any]) -> Mapping[str, float]:
        if self._core is not None:
            raise RolloutError("the engine has started already")
        self._core = make_core(arguments)
        return await self._core.stats()

    def _say(self, number: int, how: str, value: Any) -> None:
        self._writer.write(framed((number, how, value)))


async def _main(peer: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=peer)
    await Host(writer).serve(reader)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _peer, _folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    _guard = guarded(_folder)
    end_with(_peer)
    asyncio.run(_main(_peer))

"""vLLM's AsyncLLM on an event loop; see :mod:`..hosted.core`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from rlframe import RolloutError
from rlframe.serving import StopStrings
from rlframe_plugins.rollouts.hosted.core import HostedCore, Live
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.vllm.gauges import Gauges

__all__ = ["Core"]


@dataclass(eq=False)
class _Live(Live):
    """Looks for stop strings itself, beside vLLM."""

    strings: StopStrings | None = None

    def take(self, ids: Any, logprobs: Any, version: int) -> bool:
        """Add tokens; whether one of them completed a stop string, after which none is taken."""
        for token, found in zip(ids, logprobs, strict=True):
            self.add([token], [found[token].logprob], [version])
            if self._stopped():
                self.reason = "stop"
                return True
        return False

    def _stopped(self) -> bool:
        enough = len(self.ids) >= self.job.min_new_tokens
        return self.strings is not None and enough and self.strings.completed_by_last(self.ids)


class Core(HostedCore):
    """``engine`` is vLLM's AsyncLLM, ``parameters`` makes its SamplingParams from names and values.

    Prompts are cached under the load whose weights computed them, so that no later one finds them,
    also where a version comes again with other weights.
    """

    name = "vLLM"

    def __init__(self, engine: Any, parameters: Any, tokenizer: Any, gauges: Gauges) -> None:
        super().__init__()
        self._engine, self._parameters = engine, parameters
        self._tokenizer, self._gauges = tokenizer, gauges
        self._slept = self._freed = self._loads = 0

    def made(self, job: Job) -> Live:
        """See :class:`HostedCore`."""
        return _Live(job, strings=StopStrings(self._tokenizer(), job.stop) if job.stop else None)

    async def draw(self, name: str, live: Live) -> None:
        """See :class:`HostedCore`."""
        assert isinstance(live, _Live), "made() makes it"
        prompt = {
            "prompt_token_ids": list(live.job.prompt_ids),
            "cache_salt": f"load {self._loads}",
        }
        stream = self._engine.generate(prompt, self._parameters(live.job.sampling), name)
        async with contextlib.aclosing(stream):
            async for output in stream:
                (found,) = output.outputs
                if live.take(found.token_ids, found.logprobs or (), self.version):
                    return
                if found.finish_reason in ("stop", "length"):
                    live.reason = found.finish_reason
                elif output.finished and found.finish_reason != "abort":
                    raise RolloutError(f"it ended a response for '{found.finish_reason}'")

    async def halt(self) -> None:
        """See :class:`HostedCore`."""
        await self._engine.pause_generation(mode="keep", clear_cache=False)

    async def go_on(self) -> None:
        """See :class:`HostedCore`."""
        await self._engine.resume_generation()

    async def replace(self, version: int, path: str, entries: Any) -> None:
        """See :class:`HostedCore`; by the worker extension."""
        self._loads += 1
        await self._engine.collective_rpc("rlframe_load", args=(path, list(entries)))
        await self._engine.reset_prefix_cache()

    async def release(self, level: int, real: bool) -> None:
        """See :class:`HostedCore`; what was given back is measured."""
        await self._engine.reset_prefix_cache()
        if real and level > self._slept:
            if self._slept:  # what it gave back already cannot be given back again
                await self._engine.wake_up()
            before = await self._memory()
            await self._engine.sleep(level)
            self._slept, self._freed = level, max(before - await self._memory(), 0)

    async def rouse(self, real: bool, *, weights_only: bool = False) -> None:
        """See :class:`HostedCore`."""
        if not (real and self._slept):
            return
        if weights_only:
            await self._engine.wake_up(["weights"])
            return
        await self._engine.wake_up()
        self._slept = 0

    def counters(self) -> dict[str, float]:
        """See :data:`.gauges.COUNTERS`."""
        return self._gauges.counters()

    async def gauges(self) -> dict[str, float]:
        """How things stand in vLLM, and the bytes that the last sleep gave back.

        vLLM reports after a step; after an abort of all that ran there is none.
        """
        found = self._gauges.gauges()
        if not self._live:
            found |= dict.fromkeys(("running", "waiting", "kv_used_tokens"), 0.0)
        return {"freed_bytes": float(self._freed), **found}

    async def show(self) -> list[Any]:
        """Parcels of the weights that each worker computes with; see the extension."""
        return list(await self._engine.collective_rpc("rlframe_show"))

    async def hide(self) -> None:
        """Give their memory back."""
        await self._engine.collective_rpc("rlframe_hide")

    def close(self) -> None:
        """See :class:`HostedCore`."""
        self._engine.shutdown()

    async def _memory(self) -> int:
        return int(sum(await self._engine.collective_rpc("rlframe_memory")))

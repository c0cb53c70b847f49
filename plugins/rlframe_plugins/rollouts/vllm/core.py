"""One vLLM engine on an event loop: requests, versions of tokens, weights, pause and sleep."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from rlframe import RolloutError
from rlframe.requests import Completion, FinishReason
from rlframe.serving import StopStrings
from rlframe_plugins.rollouts.vllm.frames import Job
from rlframe_plugins.rollouts.vllm.gauges import Gauges

__all__ = ["Core", "Live"]


@dataclass(eq=False)
class Live:
    """A request that runs, and what it has so far: equal lengths of ids, log-probs, versions."""

    job: Job
    strings: StopStrings | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: FinishReason = "abort"
    work: asyncio.Task[None] | None = None
    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever there is more, and at the end."""

    def take(self, ids: Any, logprobs: Any, version: int) -> bool:
        """Add tokens; whether one of them completed a stop string, after which none is taken."""
        self.fresh.set()
        for token, found in zip(ids, logprobs, strict=True):
            self.ids.append(token)
            self.logprobs.append(found[token].logprob)
            self.versions.append(version)
            if self._stopped():
                self.reason = "stop"
                return True
        return False

    def _stopped(self) -> bool:
        enough = len(self.ids) >= self.job.min_new_tokens
        return self.strings is not None and enough and self.strings.completed_by_last(self.ids)

    def completion(self) -> Completion:
        """What there is."""
        return Completion(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), self.reason)


class Core:
    """``engine`` is vLLM's AsyncLLM, ``parameters`` makes its SamplingParams from names and values.

    Prompts are cached under the load whose weights computed them, so that no later one finds them,
    also where a version comes again with other weights.
    """

    def __init__(self, engine: Any, parameters: Any, tokenizer: Any, gauges: Gauges) -> None:
        self._engine, self._parameters = engine, parameters
        self._tokenizer, self._gauges = tokenizer, gauges
        self._live: dict[int | str, Live] = {}
        self._open, self._held_back = asyncio.Event(), False
        self._open.set()
        self._turn = asyncio.Lock()
        self._slept = self._freed = self._loads = 0
        self._busy_s, self._since = 0.0, 0.0
        self.version, self.loaded = -1, False
        """What serves; and whether anything does, or a load is under way."""

    # --- requests -----------------------------------------------------------------------------

    def begin(self, key: int | str, job: Job) -> Live:
        """Start a request, whose key is new; from now on it can be aborted."""
        strings = StopStrings(self._tokenizer(), job.stop) if job.stop else None
        self._count()
        live = self._live[key] = Live(job, strings)
        live.work = asyncio.ensure_future(self._consume(str(key), live))
        live.work.add_done_callback(lambda _: self._end(key, live))
        return live

    async def finish(self, live: Live) -> Completion:
        """Its response; an abort or the deadline gives what there is. Raises RolloutError."""
        assert live.work is not None, "begin() starts it"
        try:
            await asyncio.wait([live.work], timeout=live.job.deadline_s)
            if not live.work.done():
                live.work.cancel()
                await asyncio.wait([live.work])
        finally:
            live.work.cancel()
        if not live.work.cancelled() and (error := live.work.exception()) is not None:
            raise RolloutError(f"vLLM failed: {type(error).__name__}: {error}") from error
        return live.completion()

    def abort(self, key: int | str) -> None:
        """End a request; one that has ended is no error."""
        if key in self._live:
            self.stop(self._live[key])

    def stop(self, live: Live) -> None:
        """The same for one that is at hand."""
        if live.work is not None:
            live.work.cancel()

    def _end(self, key: int | str, live: Live) -> None:
        self._count()
        live.fresh.set()
        del self._live[key]

    async def _consume(self, name: str, live: Live) -> None:
        await self._open.wait()
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

    # --- weights, pause, sleep ----------------------------------------------------------------

    async def load(self, version: int, path: str, entries: Any) -> None:
        """Take weights from a parcel; requests that run wait meanwhile, then go on with them.

        After a failure there is no version, and what ran has ended.
        """
        async with self._turn:
            held, self._held_back = self._held_back, True
            self._gate()
            if self._slept:
                await self._engine.wake_up(["weights"])
            await self._engine.pause_generation(mode="keep", clear_cache=False)
            self.version = -1
            self._loads += 1
            try:
                await self._engine.collective_rpc("rlframe_load", args=(path, list(entries)))
            except BaseException:
                self.loaded, self._held_back = False, held
                await self._end_all()
                raise
            await self._engine.reset_prefix_cache()
            self.version, self.loaded = version, True
            self._held_back = held
            if not held:
                await self._engine.resume_generation()
            self._gate()

    async def pause(self, mode: Literal["keep", "abort"]) -> None:
        """Stop between two tokens; with "abort" end what runs."""
        async with self._turn:
            self._held_back = True
            self._gate()
            await self._engine.pause_generation(mode="keep", clear_cache=False)
            if mode == "abort":
                await self._end_all()

    async def resume(self) -> None:
        """Go on."""
        async with self._turn:
            self._held_back = False
            await self._engine.resume_generation()
            self._gate()

    async def sleep(self, level: int, real: bool) -> None:
        """End what runs and give memory back, where vLLM can (``real``); else only the requests."""
        async with self._turn:
            await self._end_all()
            await self._engine.reset_prefix_cache()
            if real and level > self._slept:
                if self._slept:  # what it gave back already cannot be given back again
                    await self._engine.wake_up()
                before = await self._memory()
                await self._engine.sleep(level)
                self._slept, self._freed = level, max(before - await self._memory(), 0)

    async def wake(self, real: bool) -> None:
        """Take the memory again; after level 2 the weights came with :meth:`load`."""
        async with self._turn:
            if real and self._slept:
                await self._engine.wake_up()
                self._slept = 0

    # --- figures ------------------------------------------------------------------------------

    async def stats(self) -> dict[str, float]:
        """Seconds with requests, and vLLM's own counters."""
        self._count()
        return {"busy_s": self._busy_s, **self._gauges.counters()}

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
        """End the engine and its processes."""
        self._engine.shutdown()

    # --- inside -------------------------------------------------------------------------------

    def _gate(self) -> None:
        """Let requests to the engine, or hold them back."""
        self._count()
        if self._held_back:
            self._open.clear()
        else:
            self._open.set()

    async def _end_all(self) -> None:
        work = [live.work for live in self._live.values() if live.work is not None]
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)

    async def _memory(self) -> int:
        return int(sum(await self._engine.collective_rpc("rlframe_memory")))

    def _count(self) -> None:
        """Add the time since the last call if requests ran in it."""
        now = time.perf_counter()
        if self._live and self._open.is_set():
            self._busy_s += now - self._since
        self._since = now

"""SGLang's engine on an event loop; see :mod:`..hosted.core`."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from rlframe.errors import RolloutError
from rlframe_plugins.rollouts.hosted.core import HostedCore, Live
from rlframe_plugins.rollouts.hosted.parcel import opened_parcel
from rlframe_plugins.rollouts.http.server import check_part, finish_reason
from rlframe_plugins.rollouts.sglang.api import Api
from rlframe_plugins.rollouts.sglang.protocol import part_of
from rlframe_plugins.rollouts.sglang.weights import buckets, part_name

__all__ = ["COUNTERS", "FIGURES", "SGLangCore"]

COUNTERS = ("prefix_hit_tokens", "prefill_tokens", "generated_tokens")
"""Tokens of prompts that were found in the cache and those that were computed; tokens drawn."""
FIGURES = ("running", "waiting", "kv_used_tokens", "kv_total_tokens", "generated_tokens_per_s")
"""Requests that run and wait; tokens that the cache holds and has room for; tokens a second."""


class SGLangCore(HostedCore):
    """``engine`` is an ``sglang.Engine`` of ``workers`` processes, made on this event loop.

    ``bucket_bytes`` of weights travel under one call.
    """

    name = "SGLang"

    def __init__(self, engine: Any, api: Api, workers: int, bucket_bytes: int) -> None:
        super().__init__()
        self._engine, self._manager = engine, engine.tokenizer_manager
        self._api, self._io = api, api.requests
        self._workers, self._bucket = workers, bucket_bytes
        self._away: list[str] = []
        """Kinds of memory that were given back."""
        self._counted = dict.fromkeys(COUNTERS, 0.0)

    async def draw(self, name: str, live: Live) -> None:
        """See :class:`HostedCore`; ``live.job.sampling`` is the rest of a ``GenerateReqInput``."""
        rid, have = uuid.uuid4().hex, 0
        masked = "return_sampling_mask" in live.job.sampling
        asked = self._io.GenerateReqInput(
            rid=rid, input_ids=list(live.job.prompt_ids), **live.job.sampling
        )
        try:
            events = self._manager.generate_request(asked, None)
            async with contextlib.aclosing(events):
                async for event in events:
                    part = part_of(self.name, event, have, masked=masked)
                    check_part(self.name, part, live.job.limit - have)
                    self._tally(event["meta_info"], len(part.token_ids), first=not have)
                    have += len(part.token_ids)
                    live.add(part.token_ids, part.logprobs, part.versions)
                    if part.finish is not None:
                        live.reason = finish_reason(self.name, part.finish)
                        return
            raise RolloutError("it ended a response without a reason")
        finally:
            self._manager.abort_request(rid)  # of no effect on one that has ended

    async def halt(self) -> None:
        """See :class:`HostedCore`; what runs goes back to the queue, without its cache."""
        await self._manager.pause_generation(self._io.PauseGenerationReqInput(mode="retract"))

    async def go_on(self) -> None:
        """See :class:`HostedCore`."""
        await self._manager.continue_generation(self._io.ContinueGenerationReqInput())

    async def replace(self, version: int, path: str, entries: Any) -> None:
        """See :class:`HostedCore`; a few tensors at a time, within one update of SGLang's."""
        parts = list(buckets(opened_parcel(path, entries), self._bucket))
        io, manager = self._io, self._manager
        _well("begin", await manager.begin_weight_update(io.BeginWeightUpdateReqInput(), None))
        try:
            for number, part in enumerate(parts, 1):
                last = number == len(parts)
                update = io.UpdateWeightsFromTensorReqInput(
                    serialized_named_tensors=[
                        self._api.serialized(part) for _ in range(self._workers)
                    ],
                    flush_cache=last,
                    weight_version=part_name(version, last=last),
                )
                _well("take", await manager.update_weights_from_tensor(update, None))
        finally:
            ended = await manager.end_weight_update(io.EndWeightUpdateReqInput(), None)
        _well("end", ended)

    async def sleep(self, level: int, real: bool) -> None:
        """See :class:`HostedCore`.

        Requests end in the queue, where that takes effect at once: one that still ran without its
        memory would take the engine with it.
        """
        async with self._turn:
            await self.halt()
            await self._end_all()
            await self.release(level, real)
            if not self._held_back:
                await self.go_on()

    async def release(self, level: int, real: bool) -> None:
        """See :class:`HostedCore`."""
        flushed = await self._manager.flush_cache()
        if not flushed.success:
            raise RolloutError("SGLang did not empty its cache: requests still run")
        wanted = ["kv_cache"] if level == 1 else ["kv_cache", "weights"]
        more = [tag for tag in wanted if tag not in self._away]
        if real and more:  # what it gave back already cannot be given back again
            asked = self._io.ReleaseMemoryOccupationReqInput(tags=more)
            await self._manager.release_memory_occupation(asked, None)
            self._away += more

    async def rouse(self, real: bool, *, weights_only: bool = False) -> None:
        """See :class:`HostedCore`."""
        tags = [tag for tag in self._away if tag == "weights" or not weights_only]
        if real and tags:
            asked = self._io.ResumeMemoryOccupationReqInput(tags=tags)
            await self._manager.resume_memory_occupation(asked, None)
            self._away = [tag for tag in self._away if tag not in tags]

    def counters(self) -> dict[str, float]:
        """See :data:`COUNTERS`."""
        return dict(self._counted)

    async def gauges(self) -> dict[str, float]:
        """See :data:`FIGURES`; sums over its schedulers."""
        found = dict.fromkeys(FIGURES, 0.0)
        for load in await self._manager.get_loads():
            found["running"] += load.num_running_reqs
            found["waiting"] += load.num_waiting_reqs
            found["kv_used_tokens"] += load.num_used_tokens
            found["kv_total_tokens"] += load.max_total_num_tokens
            found["generated_tokens_per_s"] += load.gen_throughput
        return found

    def close(self) -> None:
        """See :class:`HostedCore`."""
        self._engine.shutdown()

    def _tally(self, meta: Any, fresh: int, *, first: bool) -> None:
        counted = self._counted
        counted["generated_tokens"] += fresh
        if first and fresh:
            hits = float(meta.get("cached_tokens") or 0)
            counted["prefix_hit_tokens"] += hits
            counted["prefill_tokens"] += float(meta["prompt_tokens"]) - hits


def _well(step: str, answer: Any) -> None:
    """Raise RolloutError for what SGLang refused: an answer is (success, message)."""
    if not answer[0]:
        raise RolloutError(f"SGLang did not {step} a weight update: {answer[1]}")

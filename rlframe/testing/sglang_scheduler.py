"""What stands for SGLang's scheduler: requests, pauses, weights and memory over a real engine.

It draws a token at a time, so that pauses, aborts and new weights come between two tokens, as in
the real one. What would end the real one's process is an error here too. Nothing of SGLang is
installed or copied.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlframe.errors import RlframeError
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.requests import Request, Sampling

__all__ = ["Dead", "FakeScheduler"]

_KINDS = ("kv_cache", "weights")
"""Of memory that can be given back."""


class Dead(RuntimeError):
    """The real scheduler would have ended with this."""


@dataclass(eq=False)
class Drawn:
    """A request that is drawn: tokens and what came with them."""

    prompt: tuple[int, ...]
    sampling: Sampling
    masked: bool
    since: int
    """What had been done to the scheduler before."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    finish: dict[str, Any] | None = None


class FakeScheduler:
    """``engine`` draws; ``decode`` makes text of ids, for stop strings. Used from one event loop.

    ``incremental``: events hold new tokens only, as with ``--incremental-streaming-output``.
    """

    def __init__(self, engine: RolloutEngine, decode: Any, *, incremental: bool = False) -> None:
        self.engine, self._decode, self.incremental = engine, decode, incremental
        self.weight_version = "default"
        self.versions: list[str] = []
        """Names of the weights that came in part, part by part."""
        self.refuses = ""
        """Why it takes no weights in part."""
        self.memory: set[str] = set()
        """What was given back."""
        self.jobs: dict[str, Drawn] = {}
        self.running, self.drawing, self.updating = True, 0, False
        self.lasting: int | None = None
        """Requests that must draw so many tokens wait half-way until something is done to them, or
        to what draws: so a test finds them running."""
        self._done = 0
        self._changed: asyncio.Condition | None = None

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The events of a request."""
        if self.memory:
            raise Dead("generation without memory")
        sampling, ids = _sampling(body["sampling_params"]), tuple(body["input_ids"])
        job = Drawn(ids, sampling, _masked(body), self._done)
        assert body["stream"]
        assert body["return_logprob"]
        if body["rid"] in self.jobs:
            raise ValueError(f"Duplicate request ID detected: {body['rid']}")
        self.jobs[body["rid"]] = job
        try:
            while job.finish is None:
                have = len(job.ids)
                await self._draw(job)
                yield self._event(body["rid"], job, have)
        finally:
            del self.jobs[body["rid"]]
            await self.tell()

    async def _draw(self, job: Drawn) -> None:
        """One more token, or the end of one that was aborted."""
        await self.wait(lambda: job.finish or (self.running and not self._waits(job)))
        if job.finish is not None:
            return
        if self.memory:
            raise Dead("a step without memory")
        count, sampling = len(job.ids), job.sampling
        early = count + 1 < sampling.min_new_tokens
        one = dataclasses.replace(
            sampling,
            max_new_tokens=1,
            min_new_tokens=int(count < sampling.min_new_tokens),
            stop=(),
            seed=None,
        )
        version = self.weight_version
        self.drawing += 1
        try:
            done = await self.engine.generate(Request((*job.prompt, *job.ids), one))
        finally:
            self.drawing -= 1
            await self.tell()
        job.ids += done.token_ids
        job.logprobs += done.logprobs
        job.versions.append(version)
        if done.finish_reason == "stop":
            job.finish = {"type": "stop", "matched": job.ids[-1]}
        elif not early and (matched := self._matched(job)):
            job.finish = {"type": "stop", "matched": matched}
        elif len(job.ids) >= sampling.max_new_tokens:
            job.finish = {"type": "length", "length": len(job.ids)}

    def _waits(self, job: Drawn) -> bool:
        """See :attr:`lasting`."""
        if self.lasting is None or job.sampling.min_new_tokens < self.lasting:
            return False
        return len(job.ids) >= self.lasting // 2 and job.since == self._done

    def _matched(self, job: Drawn) -> str:
        """The stop string that the newest token completes."""
        if not job.sampling.stop:
            return ""
        before, text = self._decode(job.ids[:-1]), self._decode(job.ids)
        found = (s for s in job.sampling.stop if s in text[max(len(before) - len(s) + 1, 0) :])
        return next(found, "")

    def _event(self, rid: str, job: Drawn, have: int) -> dict[str, Any]:
        first = have if self.incremental else 0
        pairs = list(zip(job.logprobs, job.ids, strict=True))[first:]
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": job.finish,
            "prompt_tokens": len(job.prompt),
            "completion_tokens": len(job.ids),
            "cached_tokens": 0,
            "weight_version": job.versions[-1] if job.versions else self.weight_version,
            "weight_versions": _spans(job.versions),
            "output_token_logprobs": [(lp, token, None) for lp, token in pairs],
        }
        if job.masked:
            meta["output_token_sampling_logprobs"] = [lp for lp, _ in pairs]
            # Of a truncated draw the other log-probabilities are before truncation: of no use.
            meta["output_token_logprobs"] = [(0.0, token, None) for _, token in pairs]
        return {"text": "", "output_ids": job.ids[first:], "meta_info": meta}

    async def abort(self, rid: str, *, everything: bool = False) -> None:
        """End a request; one that runs ends after its step."""
        for job in [job for one, job in self.jobs.items() if everything or one == rid]:
            job.finish = job.finish or {"type": "abort", "message": "Abort"}
            self._done += 1
        await self.tell()

    async def pause(self, mode: str) -> None:
        """Stop between two tokens."""
        assert mode in ("abort", "retract", "in_place")
        self.running = False
        self._done += 1
        if mode == "abort":
            await self.abort("", everything=True)
        await self.wait(lambda: not self.drawing)

    async def go_on(self) -> None:
        """The reverse of :meth:`pause`."""
        self.running = True
        await self.tell()

    # --- weights and memory -------------------------------------------------------------------

    async def begin_update(self) -> tuple[bool, str]:
        """Weights come in part between this and :meth:`end_update`."""
        if self.updating:
            return False, "a weight-update session is already open"
        self.updating = True
        return True, "Success"

    async def end_update(self) -> tuple[bool, str]:
        """See :meth:`begin_update`."""
        if not self.updating:
            return False, "no weight-update session is open"
        self.updating = False
        return True, "Success"

    async def take(self, part: Mapping[str, Any], version: str | None) -> tuple[bool, str]:
        """A part of the weights: others stay."""
        if not self.updating:
            return False, "weights must come between begin_weight_update() and end_weight_update()"
        if self.refuses:
            return False, self.refuses
        have = {n: t.clone() for n, t in self.engine.weights().items()}
        if why := await self.change(have | dict(part)):
            return False, why
        if version is not None:
            self.weight_version = version
            self.versions.append(version)
        return True, "Success"

    async def change(self, whole: Mapping[str, Any]) -> str:
        """Other weights, or why they cannot be; waits for what runs, unless it is paused."""
        await self.wait(lambda: not (self.drawing if not self.running else self.jobs))
        if "weights" in self.memory:
            raise Dead("weights without memory for them")
        try:
            self.engine.load(self.engine.version + 1, whole)
        except RlframeError as error:
            return f"Failed to update: {error}"
        return ""

    async def release(self, tags: Sequence[str] | None) -> None:
        """Give memory back, of an idle engine or a paused one."""
        if self.drawing or (self.running and self.jobs):
            raise Dead("release_memory_occupation should be called only when idle")
        for tag in tags or _KINDS:
            if tag in self.memory:
                raise Dead(f"{tag} was given back before")
            self.memory.add(tag)

    async def reoccupy(self, tags: Sequence[str] | None) -> None:
        """Take it again."""
        for tag in tags or _KINDS:
            if tag not in self.memory:
                raise Dead(f"{tag} was not given back")
            self.memory.remove(tag)

    # --- inside -------------------------------------------------------------------------------

    async def wait(self, ready: Any) -> None:
        """Until it is."""
        async with self._condition:
            await self._condition.wait_for(ready)

    async def tell(self) -> None:
        """Something changed."""
        async with self._condition:
            self._condition.notify_all()

    @property
    def _condition(self) -> asyncio.Condition:
        if self._changed is None:
            self._changed = asyncio.Condition()
        return self._changed


def _sampling(params: Mapping[str, Any]) -> Sampling:
    assert params["no_stop_trim"], "the real server would cut the stop token or string"
    return Sampling(
        temperature=params["temperature"],
        top_p=params["top_p"],
        top_k=max(params["top_k"], 0),
        min_p=params["min_p"],
        max_new_tokens=params["max_new_tokens"],
        min_new_tokens=params["min_new_tokens"],
        stop=tuple(params.get("stop", ())),
        stop_token_ids=tuple(params["stop_token_ids"]),
    )


def _masked(body: Mapping[str, Any]) -> bool:
    assert not body.get("sampling_logprobs_mode") or body.get("return_sampling_mask")
    return bool(body.get("return_sampling_mask"))


def _spans(versions: Sequence[str]) -> list[dict[str, Any]]:
    """Runs of tokens with one version."""
    spans: list[dict[str, Any]] = []
    for place, version in enumerate(versions):
        if not spans or spans[-1]["version"] != version:
            spans.append({"version": version, "start": place, "end": place})
        spans[-1]["end"] = place + 1
    return spans

"""A server that speaks SGLang's protocol over real HTTP, with any rollout engine behind it.

It draws a token at a time, so that pauses, aborts and new weights come between two tokens, as in
the real one. Nothing of SGLang is installed or copied.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlframe.interfaces.rollout import RolloutEngine
from rlframe.requests import Request, Sampling
from rlframe.testing.http_server import Denied, HttpServer

__all__ = ["FakeSGLang"]


@dataclass(eq=False)
class _Job:
    """A request that is drawn: tokens and what came with them."""

    prompt: tuple[int, ...]
    sampling: Sampling
    mask: bool
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    finish: dict[str, Any] | None = None


class FakeSGLang(HttpServer):
    """``engine`` draws; ``decode`` makes text of ids, for stop strings.

    ``incremental``: events hold new tokens only, as with ``--incremental-streaming-output``.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        decode: Any,
        *,
        incremental: bool = False,
        name: str = "default",
    ) -> None:
        self.engine, self._decode, self._incremental = engine, decode, incremental
        self.weight_version, self.model_path = "default", engine.spec.path
        self.metrics: dict[str, float] = {}
        """What it shows at /metrics; empty: it was started without that."""
        self.versions: list[str] = []
        """Names of the weights that were broadcast to it, part by part."""
        self.refuses = ""
        """Why it takes no broadcast weights."""
        self._group: Any = None
        self.memory: set[str] = set()
        """What was given back."""
        self._jobs: dict[str, _Job] = {}
        self._running, self._drawing = True, 0
        self._changed: asyncio.Condition | None = None
        super().__init__("fake-sglang")

    async def answer(self, method: str, path: str, body: Any) -> Any:
        """See :class:`HttpServer`."""
        if self._changed is None:
            self._changed = asyncio.Condition()
        if path == "/generate":
            return self._generate(body)
        call = getattr(self, "_on" + path.replace("/", "_"), None)
        if call is None:
            raise Denied(404, {"detail": "Not Found"})
        return await call(body or {})

    # --- generation ---------------------------------------------------------------------------

    async def _generate(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if self.memory:
            raise RuntimeError("generation without memory")
        job = _Job(tuple(body["input_ids"]), _sampling(body["sampling_params"]), _mask(body))
        assert body["stream"]
        assert body["return_logprob"]
        assert body["rid"] not in self._jobs
        self._jobs[body["rid"]] = job
        try:
            while job.finish is None:
                have = len(job.ids)
                await self._draw(job)
                yield self._event(body["rid"], job, have)
        finally:
            del self._jobs[body["rid"]]
            await self._tell()

    async def _draw(self, job: _Job) -> None:
        """One more token, or the end of one that was aborted."""
        await self._wait(lambda: self._running or job.finish is not None)
        if job.finish is not None:
            return
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
        self._drawing += 1
        try:
            done = await self.engine.generate(Request((*job.prompt, *job.ids), one))
        finally:
            self._drawing -= 1
            await self._tell()
        job.ids += done.token_ids
        job.logprobs += done.logprobs
        job.versions.append(version)
        if done.finish_reason == "stop":
            job.finish = {"type": "stop", "matched": job.ids[-1]}
        elif not early and (matched := self._matched(job)):
            job.finish = {"type": "stop", "matched": matched}
        elif len(job.ids) >= sampling.max_new_tokens:
            job.finish = {"type": "length", "length": len(job.ids)}

    def _matched(self, job: _Job) -> str:
        """The stop string that the newest token completes."""
        if not job.sampling.stop:
            return ""
        before, text = self._decode(job.ids[:-1]), self._decode(job.ids)
        found = (s for s in job.sampling.stop if s in text[max(len(before) - len(s) + 1, 0) :])
        return next(found, "")

    def _event(self, rid: str, job: _Job, have: int) -> dict[str, Any]:
        first = have if self._incremental else 0
        pairs = list(zip(job.logprobs, job.ids, strict=True))[first:]
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": job.finish,
            "prompt_tokens": len(job.prompt),
            "completion_tokens": len(job.ids),
            "weight_version": job.versions[-1] if job.versions else self.weight_version,
            "weight_versions": _spans(job.versions),
            "output_token_logprobs": [(lp, token, None) for lp, token in pairs],
        }
        if job.mask:
            meta["output_token_sampling_logprobs"] = [lp for lp, _ in pairs]
            # Of a truncated draw the other log-probabilities are before truncation: of no use.
            meta["output_token_logprobs"] = [(0.0, token, None) for _, token in pairs]
        return {"text": "", "output_ids": job.ids[first:], "meta_info": meta}

    async def _on_metrics(self, body: Mapping[str, Any]) -> Any:
        """As with ``--enable-metrics``, of which :attr:`metrics` is a part."""
        if not self.metrics:
            raise Denied(404, {"detail": "Not Found"})
        lines = [f'{name}{{model_name="m"}} {value}' for name, value in self.metrics.items()]
        return "\n".join(["# TYPE sglang:num_running_reqs gauge", *lines])

    # --- control ------------------------------------------------------------------------------

    async def _on_model_info(self, body: Mapping[str, Any]) -> Any:
        return {"model_path": self.model_path, "weight_version": self.weight_version}

    async def _on_server_info(self, body: Mapping[str, Any]) -> Any:
        sizes = {"tp_size": 1, "pp_size": 1, "dp_size": 1}
        return {"incremental_streaming_output": self._incremental, "version": "0.5.fake", **sizes}

    async def _on_health(self, body: Mapping[str, Any]) -> Any:
        return None

    async def _on_abort_request(self, body: Mapping[str, Any]) -> Any:
        for rid, job in self._jobs.items():
            if body.get("abort_all") or rid == body.get("rid"):
                job.finish = job.finish or {"type": "abort", "message": "Abort"}
        await self._tell()

    async def _on_pause_generation(self, body: Mapping[str, Any]) -> Any:
        assert body["mode"] in ("abort", "retract", "in_place")
        self._running = False
        if body["mode"] == "abort":
            await self._on_abort_request({"abort_all": True})
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def _on_continue_generation(self, body: Mapping[str, Any]) -> Any:
        self._running = True
        await self._tell()
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def _on_flush_cache(self, body: Mapping[str, Any]) -> Any:
        return "Cache flushed."

    async def _on_update_weights_from_disk(self, body: Mapping[str, Any]) -> Any:
        """As the real one: waits for what runs, unless generation is paused."""
        from safetensors.torch import load_file

        await self._wait(lambda: not (self._drawing if not self._running else self._jobs))
        try:
            tensors = load_file(Path(body["model_path"]) / "model.safetensors")
        except OSError as error:
            raise Denied(400, {"success": False, "message": str(error)}) from error
        self.engine.load(self.engine.version + 1, tensors)
        self.model_path = body["model_path"]
        if body.get("weight_version") is not None:
            self.weight_version = str(body["weight_version"])
        self.memory.discard("weights")
        return {"success": True, "message": "Succeeded to update model weights."}

    async def _on_init_weights_update_group(self, body: Mapping[str, Any]) -> Any:
        self._group = await asyncio.to_thread(_joined, body)
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    async def _on_update_weights_from_distributed(self, body: Mapping[str, Any]) -> Any:
        """A part: other weights stay."""
        if self.refuses:
            raise Denied(400, {"success": False, "message": self.refuses})
        await self._wait(lambda: not (self._drawing if not self._running else self._jobs))
        part = await asyncio.to_thread(_received, self._group, body)
        whole = {n: t.clone() for n, t in self.engine.weights().items()} | part
        self.engine.load(self.engine.version + 1, whole)
        self.weight_version = str(body["weight_version"])
        self.versions.append(self.weight_version)
        return {"success": True, "message": "Succeeded to update parameter online."}

    async def _on_destroy_weights_update_group(self, body: Mapping[str, Any]) -> Any:
        self._group = None
        return {"success": True, "message": "Succeeded to destroy custom process group."}

    async def _on_release_memory_occupation(self, body: Mapping[str, Any]) -> Any:
        if self._jobs:
            raise Denied(400, {"error": {"message": "requests are running"}})
        self.memory |= set(body.get("tags") or ("kv_cache", "weights"))

    async def _on_resume_memory_occupation(self, body: Mapping[str, Any]) -> Any:
        self.memory -= set(body.get("tags") or ("kv_cache", "weights"))

    async def _wait(self, ready: Any) -> None:
        assert self._changed is not None
        async with self._changed:
            await self._changed.wait_for(ready)

    async def _tell(self) -> None:
        assert self._changed is not None
        async with self._changed:
            self._changed.notify_all()


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


def _mask(body: Mapping[str, Any]) -> bool:
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


def _joined(body: Mapping[str, Any]) -> Any:
    """The group as torch makes it for SGLang: of a store whose keys have its name before them."""
    from datetime import timedelta

    from torch import distributed as dist

    found: Any = dist
    name, world = body["group_name"], body["world_size"]
    assert body["backend"] == "gloo", "there is no GPU behind this server"
    store = found.TCPStore(body["master_address"], body["master_port"], world, is_master=False)
    for prefix in (name, f"{name}/", "cpu/"):
        store = found.PrefixStore(prefix, store)
    return found.ProcessGroupGloo(store, body["rank_offset"], world, timedelta(seconds=60))


def _received(group: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch.distributed import BroadcastOptions

    options, found = BroadcastOptions(), {}  # from rank 0
    for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast([found[name]], options).wait()
    return found

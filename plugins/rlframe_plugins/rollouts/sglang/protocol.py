"""SGLang's own protocol: tokens in and out, as of 0.5.22; its engine and ``/generate`` share it.

A server that a run uses needs ``--enable-memory-saver`` for sleep. Streams are shorter with
``--incremental-streaming-output``; both forms are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlframe.errors import RolloutError
from rlframe.requests import Request, Sampling
from rlframe_plugins.rollouts.http.client import HttpOptions
from rlframe_plugins.rollouts.http.figures import Metrics
from rlframe_plugins.rollouts.http.server import Part, Server
from rlframe_plugins.rollouts.replicas import ReplicaLost

__all__ = ["METRICS", "SGLangServer", "generation", "part_of", "sampling_params"]

METRICS = Metrics(
    {
        "sglang:prompt_tokens_total": "prompt_tokens_there",
        "sglang:cached_tokens_total": "prefix_hit_tokens",
        "sglang:generation_tokens_total": "generated_tokens",
    },
    {
        "sglang:num_running_reqs": "running",
        "sglang:num_queue_reqs": "waiting",
        "sglang:num_used_tokens": "kv_used_tokens",
        "sglang:max_total_num_tokens": "kv_total_tokens",
        "sglang:gen_throughput": "generated_tokens_per_s",
    },
)
"""Its figures at ``/metrics``."""


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """SGLang's form; a stop token and a stop string stay in the response."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "max_new_tokens": sampling.max_new_tokens,
        "min_new_tokens": sampling.min_new_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed % 2**31
    return params


def generation(sampling: Sampling, limit: int) -> dict[str, Any]:
    """What is asked for beside the prompt and its id; ``limit`` bounds the response, tokens.

    Log-probabilities are before truncation, unless a mask is asked for.
    """
    within = replace(
        sampling, max_new_tokens=limit, min_new_tokens=min(sampling.min_new_tokens, limit)
    )
    asked: dict[str, Any] = {
        "sampling_params": sampling_params(within),
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
    }
    drops = sampling.top_p < 1 or bool(sampling.top_k) or sampling.min_p > 0
    if drops and sampling.temperature > 0:
        asked |= {"return_sampling_mask": True, "sampling_logprobs_mode": "selected"}
    return asked


class SGLangServer(Server):
    """One SGLang server. It shows figures where it was started with ``--enable-metrics``."""

    metrics = METRICS

    def __init__(self, url: str, options: HttpOptions, limit_s: float, idle_s: float) -> None:
        super().__init__(url, options, limit_s, idle_s)
        self._forgetting: set[asyncio.Task[None]] = set()

    async def check(self) -> str:
        """See :class:`Replica`: whether it answers."""
        await self.ask("GET", "/model_info")
        return ""

    async def version(self) -> str:
        """The name of the weights that it serves."""
        found = await self.ask("GET", "/model_info")
        return str(found.get("weight_version", "")) if isinstance(found, Mapping) else ""

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """See :class:`Server`."""
        rid, have, finished = uuid.uuid4().hex, 0, False
        sampling = request.sampling
        body = {"rid": rid, "input_ids": list(request.prompt_ids)}
        body |= generation(sampling, sampling.max_new_tokens)
        where, masked = f"{self.name}/generate", "return_sampling_mask" in body
        try:
            async with contextlib.aclosing(
                self.client.events("/generate", body, self.idle_s)
            ) as events:
                async for event in events:
                    part = part_of(where, event, have, masked=masked)
                    have += len(part.token_ids)
                    finished = part.finish is not None
                    yield part
                    if finished:
                        return
        finally:
            if not finished:
                # Not waited for: whoever gave the request up has no time for a server that hangs.
                task = asyncio.ensure_future(self._forget(rid))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)

    async def _forget(self, rid: str) -> None:
        """End a request there; a server that is gone has ended it."""
        with contextlib.suppress(RolloutError):
            await self.ask("POST", "/abort_request", {"rid": rid})


def part_of(who: str, event: Mapping[str, Any], have: int, *, masked: bool) -> Part:
    """What is new in an event, whose lists hold all tokens so far or only new ones.

    ``masked``: the mask of each draw was asked for. Raises RolloutError for what is none, and
    ReplicaLost where ``who`` gave the request up.
    """
    try:
        meta, ids = event["meta_info"], event["output_ids"]
        fresh = int(meta["completion_tokens"]) - have
        reason = meta["finish_reason"]
        logprobs = _logprobs(meta, masked, fresh)
        new = list(ids[-fresh:]) if fresh > 0 else []
        versions = _versions(meta, have, len(new))
        finish = None if reason is None else str(reason["type"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RolloutError(
            f"{who} sent an event that cannot be read ({type(error).__name__}: {error}): is it "
            "SGLang 0.5.22 or later?"
        ) from error
    if len(new) != max(fresh, 0) or len(logprobs) != len(new):
        raise RolloutError(
            f"{who} sent {len(ids)} tokens and {len(logprobs)} of their log-probabilities for "
            f"{fresh} new tokens"
        )
    if finish == "abort" and str(reason.get("status_code", "")).startswith("5"):
        raise ReplicaLost(f"{who} gave a request up: {reason.get('message', '')}")
    return Part(new, logprobs, versions, finish)


def _logprobs(meta: Mapping[str, Any], masked: bool, fresh: int) -> list[float]:
    """Nats of the newest tokens, under the distribution that they were drawn from."""
    if fresh <= 0:
        return []
    if masked:
        return [float(value) for value in meta["output_token_sampling_logprobs"][-fresh:]]
    return [float(one[0]) for one in meta["output_token_logprobs"][-fresh:]]


def _versions(meta: Mapping[str, Any], have: int, count: int) -> list[int]:
    """The weight version of tokens ``have`` and later; -1 for weights that are not of this run."""
    spans: Sequence[Mapping[str, Any]] = meta.get("weight_versions") or ()
    found = [_number(meta.get("weight_version"))] * count
    for span in spans:
        for place in range(max(int(span["start"]), have), min(int(span["end"]), have + count)):
            found[place - have] = _number(span["version"])
    return found


def _number(name: Any) -> int:
    return int(name) if isinstance(name, str | int) and str(name).lstrip("-").isdigit() else -1

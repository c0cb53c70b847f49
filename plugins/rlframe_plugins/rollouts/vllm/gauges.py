"""vLLM's own figures, as it reports them after every step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rlframe_plugins.rollouts.http.figures import Metrics

__all__ = ["COUNTERS", "GAUGES", "METRICS", "Gauges", "shared_counters"]

COUNTERS = (
    "prefix_queries",
    "prefix_hits",
    "prefilled_tokens",
    "generated_tokens",
    "preemptions",
)
"""Tokens looked up in the prefix cache and found there; tokens of prompts, and drawn; requests that
had to give their cache back. They never fall."""
GAUGES = ("running", "waiting", "kv_used_tokens", "kv_total_tokens", "generated_tokens_per_s")
"""Requests that run and wait; tokens that the cache holds and has room for; tokens drawn a second
while it stepped."""

_CACHE = "vllm:cache_config_info"
METRICS = Metrics(
    {
        "vllm:prefix_cache_queries_total": "prefix_queries",
        "vllm:prefix_cache_hits_total": "prefix_hits",
        "vllm:prompt_tokens_total": "prefilled_tokens",
        "vllm:generation_tokens_total": "generated_tokens",
        "vllm:num_preemptions_total": "preemptions",
    },
    {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "kv_use",
    },
    {"kv_total_tokens": (f"{_CACHE}/num_gpu_blocks", f"{_CACHE}/block_size")},
)
"""The same as a vLLM server names them at ``/metrics``."""


def shared_counters(found: Mapping[str, float]) -> dict[str, float]:
    """Of vLLM's counters those that every engine has: prompt tokens found cached, and computed."""
    hits = found.get("prefix_hits", 0.0)
    return {"prefix_hit_tokens": hits, "prefill_tokens": found.get("prefix_queries", hits) - hits}


_IDLE_S = 1.0
"""A longer time between two reports was none of stepping."""


class Gauges:
    """One of vLLM's stat loggers, in the form that its engines ask for."""

    def __init__(self) -> None:
        self._counted = dict.fromkeys(COUNTERS, 0.0)
        self._found = dict.fromkeys(GAUGES, 0.0)
        self._cache: Any = None
        self._last, self._stepping_s = 0.0, 0.0

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """What vLLM calls to make its logger."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges, self._cache = self, getattr(vllm_config, "cache_config", None)

        class Logger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self) -> None:
                pass

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any
            ) -> None:
                gauges.record(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                pass

        return Logger()

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Take one report."""
        counted, found, now = self._counted, self._found, time.perf_counter()
        self._stepping_s += now - self._last if now - self._last < _IDLE_S else 0.0
        self._last = now
        if scheduler is not None:
            found["running"] = float(scheduler.num_running_reqs)
            found["waiting"] = float(scheduler.num_waiting_reqs)
            found["kv_total_tokens"] = self._room()
            found["kv_used_tokens"] = float(scheduler.kv_cache_usage) * found["kv_total_tokens"]
            counted["prefix_queries"] += scheduler.prefix_cache_stats.queries
            counted["prefix_hits"] += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            counted["prefilled_tokens"] += iteration.num_prompt_tokens
            counted["generated_tokens"] += iteration.num_generation_tokens
            counted["preemptions"] += iteration.num_preempted_reqs

    def counters(self) -> dict[str, float]:
        """By the names in :data:`COUNTERS`."""
        return dict(self._counted)

    def gauges(self) -> dict[str, float]:
        """By the names in :data:`GAUGES`."""
        drawn = self._counted["generated_tokens"]
        rate = drawn / self._stepping_s if self._stepping_s else 0.0
        return self._found | {"generated_tokens_per_s": rate}

    def _room(self) -> float:
        """Tokens of the cache; 0 until vLLM has measured its room."""
        blocks = getattr(self._cache, "num_gpu_blocks", None) or 0
        return float(blocks * getattr(self._cache, "block_size", 0))

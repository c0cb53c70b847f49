"""vLLM's own figures, as it reports them after every step."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["FIGURES", "Gauges"]

FIGURES = (
    "running",
    "waiting",
    "kv_use",
    "prefix_queries",
    "prefix_hits",
    "prefilled_tokens",
    "generated_tokens",
    "tokens_per_s",
    "preemptions",
)
"""Requests that run and wait; share of the cache in use, 0 to 1; tokens looked up in the prefix
cache and found there; tokens computed, drawn, and drawn a second while it stepped; requests that
had to give their cache back."""

_IDLE_S = 1.0
"""A longer time between two reports was none of stepping."""


class Gauges:
    """One of vLLM's stat loggers, in the form that its engines ask for."""

    def __init__(self) -> None:
        self._found = dict.fromkeys(FIGURES, 0.0)
        self._last, self._stepping_s = 0.0, 0.0

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """What vLLM calls to make its logger."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauges = self

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
        found, now = self._found, time.perf_counter()
        self._stepping_s += now - self._last if now - self._last < _IDLE_S else 0.0
        self._last = now
        if scheduler is not None:
            found["running"] = float(scheduler.num_running_reqs)
            found["waiting"] = float(scheduler.num_waiting_reqs)
            found["kv_use"] = float(scheduler.kv_cache_usage)
            found["prefix_queries"] += scheduler.prefix_cache_stats.queries
            found["prefix_hits"] += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            found["prefilled_tokens"] += iteration.num_prompt_tokens
            found["generated_tokens"] += iteration.num_generation_tokens
            found["preemptions"] += iteration.num_preempted_reqs

    def figures(self) -> dict[str, float]:
        """By the names in :data:`FIGURES`."""
        rate = self._found["generated_tokens"] / self._stepping_s if self._stepping_s else 0.0
        return self._found | {"tokens_per_s": rate}

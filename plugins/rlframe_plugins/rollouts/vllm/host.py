"""The process that holds a vLLM engine for one worker; see :mod:`..hosted.host`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rlframe_plugins.rollouts.hosted.host import hold
from rlframe_plugins.rollouts.vllm.core import Core
from rlframe_plugins.rollouts.vllm.gauges import Gauges

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


if __name__ == "__main__":
    hold("vLLM", make_core)

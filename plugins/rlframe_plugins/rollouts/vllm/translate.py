"""From rlframe's requests and options to vLLM's. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rlframe import RolloutError
from rlframe.requests import Request
from rlframe_plugins.rollouts.hosted.config import longest
from rlframe_plugins.rollouts.hosted.frames import Job

if TYPE_CHECKING:
    from rlframe.interfaces.rollout import RolloutSpec
    from rlframe_plugins.rollouts.vllm.config import VLLMConfig

__all__ = ["EXTENSION", "engine_arguments", "job_of"]

EXTENSION = "rlframe_plugins.rollouts.vllm.extension.WeightsExtension"
_COLDEST = 0.01
"""vLLM raises lower temperatures to this one, silently but for a warning."""
_SEEDS = 2**63


def job_of(request: Request, ends: Collection[int], limit: int, seed: int | None) -> Job:
    """What vLLM is asked for; ``limit`` bounds the response, tokens.

    Log-probabilities are asked of the sampled token alone. End tokens are ours and stop strings are
    looked for beside vLLM, so that ids and text end alike. Raises RolloutError.
    """
    sampling = request.sampling
    if 0 < sampling.temperature < _COLDEST:
        raise RolloutError(
            f"request '{request.request_id}': vLLM samples at a temperature of {_COLDEST} or more, "
            f"or at 0, not at {sampling.temperature:g}"
        )
    least = min(sampling.min_new_tokens, limit)
    arguments: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_tokens": limit,
        "min_tokens": least,
        "stop_token_ids": sorted({*ends, *sampling.stop_token_ids}),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    if sampling.temperature > 0:  # greedy tokens carry the model's own log-probabilities
        arguments |= {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": None if seed is None else seed % _SEEDS,
        }
    prompt = tuple(map(int, request.prompt_ids))
    return Job(prompt, arguments, sampling.stop, least, request.deadline_s)


def engine_arguments(
    config: VLLMConfig, spec: RolloutSpec, dtype: str, positions: int
) -> dict[str, Any]:
    """Arguments of vLLM's ``AsyncEngineArgs``; ``config.engine`` has the last word.

    Weights are random until the first version arrives, and vLLM has no tokenizer.
    """
    gpu = spec.device.startswith("cuda")
    arguments: dict[str, Any] = {
        "model": spec.path,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": dtype,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": EXTENSION,
        "max_model_len": longest(spec, config.max_model_len, positions),
        "max_num_seqs": config.max_batch,
        "enforce_eager": config.enforce_eager,
        "enable_prefix_caching": config.prefix_caching,
        "tensor_parallel_size": config.tensor_parallel,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "disable_log_stats": False,
    }
    if config.kv_cache_gib or not gpu:
        arguments["kv_cache_memory_bytes"] = int((config.kv_cache_gib or 1.0) * 2**30)
    if gpu and config.sleep_mode:
        arguments["enable_sleep_mode"] = True
    if config.tensor_parallel > 1:
        arguments["distributed_executor_backend"] = "mp"
    return arguments | dict(config.engine)

"""SGLang's own engine, in processes of the worker that serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.config import check_range
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe_plugins.rollouts.hosted.config import HostedConfig, longest
from rlframe_plugins.rollouts.hosted.engine import HostedRollout
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.hosted.link import Link
from rlframe_plugins.rollouts.sglang.core import COUNTERS, FIGURES
from rlframe_plugins.rollouts.sglang.protocol import generation
from rlframe_plugins.rollouts.sglang.weights import Whole

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SGLangEngine", "engine_arguments"]


@dataclass(frozen=True)
class SGLangConfig(HostedConfig):
    """Sampling, and how the engine is set up."""

    bucket_mib: int = 512
    """Most bytes of a call that takes weights, MiB, at least 1."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        super().__post_init__()
        check_range(self, "bucket_mib", 1)


class SGLangEngine(HostedRollout):
    """``sglang.Engine`` without a server: weights reach it through shared memory.

    A ``load`` while requests run stops them between two tokens; they go on under the new weights
    with a cache that is computed anew, and every token carries the version that drew it. A
    request's seed counts with ``rollout.engine.enable_deterministic_inference=true``.
    """

    capabilities = frozenset({"stop-strings", "min-p", "pause", "in-flight", "sleep"})
    servers, counters, figures = "sglang", COUNTERS, FIGURES

    Config = SGLangConfig

    config: SGLangConfig

    def __init__(self, config: SGLangConfig, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._whole = Whole()

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """See :class:`HostedRollout`; all weights must come."""
        if self.leads:
            self._whole.check(tensors)
        super().load(version, tensors)
        self._whole.came(tensors)

    def linked(self, threads: int, *, gpu: bool) -> Link:
        """See :class:`HostedRollout`."""
        ours = {"OMP_WAIT_POLICY": "PASSIVE"}
        if not gpu:
            ours["OMP_NUM_THREADS"] = str(threads)

        def environment(folder: Path) -> dict[str, str]:
            return ours | dict(os.environ)

        return Link("SGLang", "rlframe_plugins.rollouts.sglang.host", environment)

    def arguments(self, dtype: str) -> dict[str, Any]:
        """See :class:`HostedRollout`."""
        return {
            "engine": engine_arguments(self.config, self.spec, dtype, self._positions),
            "bucket_bytes": self.config.bucket_mib * 2**20,
        }

    def job(self, request: Request, limit: int) -> Job:
        """See :class:`HostedRollout`."""
        prompt = tuple(map(int, request.prompt_ids))
        asked = generation(request.sampling, limit)
        return Job(prompt, asked, deadline_s=request.deadline_s, limit=limit)


def engine_arguments(
    config: SGLangConfig, spec: RolloutSpec, dtype: str, positions: int
) -> dict[str, Any]:
    """Arguments of SGLang's ``ServerArgs``; ``config.engine`` has the last word.

    Weights are random until the first version arrives.
    """
    device, _, number = spec.device.partition(":")
    arguments: dict[str, Any] = {
        "model_path": spec.path,
        "load_format": "dummy",
        "dtype": dtype,
        "device": device,
        "random_seed": spec.seed,
        "context_length": longest(spec, config.max_model_len, positions),
        "max_running_requests": config.max_batch,
        "disable_cuda_graph": config.enforce_eager,
        "disable_radix_cache": not config.prefix_caching,
        "tp_size": config.tensor_parallel,
        "incremental_streaming_output": True,
        "sampling_defaults": "openai",
        "log_level": "warning",
    }
    if device == "cuda":
        arguments |= {
            "base_gpu_id": int(number or 0),
            "mem_fraction_static": config.gpu_memory_utilization,
            "enable_memory_saver": config.sleep_mode,
        }
    return arguments | dict(config.engine)

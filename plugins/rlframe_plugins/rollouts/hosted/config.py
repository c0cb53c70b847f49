"""Options of the engines that live in a process of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlframe.config import SamplingConfig, check_range
from rlframe.interfaces.rollout import RolloutSpec

__all__ = ["HostedConfig", "longest"]


@dataclass(frozen=True)
class HostedConfig(SamplingConfig):
    """Sampling, and how the engine is set up."""

    tensor_parallel: int = 1
    """Ranks of the pool that one engine takes, at least 1: it spreads the model over them."""
    max_batch: int = 256
    """Sequences that run at once, at least 1."""
    max_model_len: int = 0
    """Longest prompt and response together, tokens; 0: what the run needs."""
    enforce_eager: bool = True
    """Start faster and compile nothing; false captures graphs, which decode faster on GPUs."""
    gpu_memory_utilization: float = 0.45
    """Share of a GPU's memory for weights and cache, above 0 to 1; lower beside a trainer."""
    prefix_caching: bool = True
    """Compute a prompt once for its samples, and the turns of an episode once."""
    sleep_mode: bool = True
    """Let the engine give back memory while its GPU trains; nothing is given back on a CPU."""
    start_timeout_s: float = 900.0
    """Longest start of the engine, seconds, above 0."""
    call_timeout_s: float = 600.0
    """Longest load, pause or sleep, seconds, above 0."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the engine by name: vLLM's AsyncEngineArgs, SGLang's ServerArgs."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        super().__post_init__()
        check_range(self, "tensor_parallel", 1)
        check_range(self, "max_batch", 1)
        check_range(self, "max_model_len", 0)
        check_range(self, "gpu_memory_utilization", above=0, high=1)
        check_range(self, "start_timeout_s", above=0)
        check_range(self, "call_timeout_s", above=0)


def longest(spec: RolloutSpec, asked: int, positions: int) -> int:
    """Tokens of prompt and response together that the engine has room for.

    ``asked`` is the option, 0 for what the run needs, or else the model's ``positions``.
    """
    if asked:
        return min(asked, positions)
    if spec.max_prompt_tokens and spec.max_new_tokens:
        return min(spec.max_prompt_tokens + spec.max_new_tokens, positions)
    return positions

"""Options of the rollout ``vllm``."""

from __future__ import annotations

from dataclasses import dataclass

from rlframe.config import check_range
from rlframe_plugins.rollouts.hosted.config import HostedConfig

__all__ = ["VLLMConfig"]


@dataclass(frozen=True)
class VLLMConfig(HostedConfig):
    """Sampling, and how the engine is set up."""

    kv_cache_gib: float = 0.0
    """Key-value cache, GiB, at least 0; 0: what gpu_memory_utilization leaves, on a CPU 1."""
    seeded: bool = True
    """Draw every request from a stream of its own, which a resumed run draws again; slower."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        super().__post_init__()
        check_range(self, "kv_cache_gib", 0)

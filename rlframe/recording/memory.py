"""The most memory that a process and its device have held so far, GB (2**30 bytes)."""

from __future__ import annotations

import resource
import sys

__all__ = ["device_peak_gb", "peak_memory_gb"]


def peak_memory_gb() -> float:
    """Of this process, in host memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def device_peak_gb(device: str) -> float:
    """What tensors of this process took of ``device``; 0 for a CPU: its memory is the host's."""
    if not device.startswith("cuda"):
        return 0.0
    import torch

    return torch.cuda.max_memory_allocated(device) / 2**30

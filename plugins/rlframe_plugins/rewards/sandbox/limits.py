"""What a program in the sandbox may use."""

from __future__ import annotations

import math
import resource
import sys
from dataclasses import dataclass

__all__ = ["MEGABYTE", "Limits", "limit_this_process"]

MEGABYTE = 2**20
_OPEN_FILES = 128


@dataclass(frozen=True)
class Limits:
    """Limits of one program, with all processes that it starts."""

    test_s: float
    """Longest time of one test, seconds."""
    total_s: float
    """Longest time of all tests together, seconds."""
    memory_mb: int
    """Address space of a process, and resident memory of all together, MiB."""
    disk_mb: int
    """Size of a file, and of all files together, MiB."""
    processes: int
    """Processes and threads at a time."""
    output_kb: int
    """Bytes that one test may print, KiB."""


def limit_this_process(limits: Limits, running: int) -> None:
    """Set what the kernel enforces; ``running`` are the user's processes that do not count."""
    seconds = math.ceil(limits.test_s) + 1
    disk, memory = limits.disk_mb * MEGABYTE, limits.memory_mb * MEGABYTE
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: disk,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if sys.platform == "linux":  # macOS has no working limit of memory
        wanted |= {
            resource.RLIMIT_AS: memory,
            resource.RLIMIT_NPROC: running + limits.processes,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_MEMLOCK: 0,
        }
    for kind, value in wanted.items():
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            value = min(value, most)
        resource.setrlimit(kind, (value, value))

"""The processes of a vLLM engine: how the first of them starts, and what they inherit."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from rlframe_plugins.rollouts.hosted.link import Link

__all__ = ["host_environment", "linked"]


def host_environment(threads: int, folder: Path, *, gpu: bool) -> dict[str, str]:
    """What the processes inherit beside this one's environment; the user's own settings win."""
    ours = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(folder),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if not gpu:
        ours |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    return ours | dict(os.environ) | {"VLLM_RPC_BASE_PATH": str(folder)}


def linked(threads: int, *, gpu: bool) -> Link:
    """Start the process that holds one."""
    environment = partial(host_environment, threads, gpu=gpu)
    return Link("vLLM", "rlframe_plugins.rollouts.vllm.host", environment)

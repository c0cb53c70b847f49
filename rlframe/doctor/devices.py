"""What torch can use: GPUs, and gloo or NCCL between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rlframe.doctor.finding import Finding
from rlframe.doctor.site import Site

__all__ = ["devices"]

_GIB = 2**30
_WAIT = timedelta(seconds=20)


def devices(site: Site) -> Iterator[Finding]:
    """Import torch and ask it; gloo is started for one rank."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        remedy = "pip install --force-reinstall torch"
        yield Finding("fail", "torch", f"cannot be imported ({error})", remedy)
        return
    count = torch.cuda.device_count()
    for index in range(count):
        yield _gpu(index)
    if not count:
        yield Finding("ok", "devices", "no GPU, runs use the CPU")
    if not dist.is_available():
        yield Finding("warn", "distributed", "this torch has none", "use one device (single)")
        return
    yield gloo(dist)
    if count:
        yield nccl(dist)


def _gpu(index: int) -> Finding:
    import torch

    name = torch.cuda.get_device_name(index)
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        return Finding("fail", f"cuda:{index}", f"{name}: {first}", "look at nvidia-smi")
    memory = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if free < total / 2:
        return Finding("warn", f"cuda:{index}", f"{name}, {memory}", "nvidia-smi shows who has it")
    return Finding("ok", f"cuda:{index}", f"{name}, {memory}")


def gloo(dist: Any) -> Finding:
    """Whether ranks on CPUs can talk: a group of one rank, which needs an address."""
    if not dist.is_gloo_available():
        remedy = "install a torch build with gloo for several ranks on a CPU"
        return Finding("warn", "gloo", "missing", remedy)
    try:
        dist.ProcessGroupGloo(dist.HashStore(), 0, 1, _WAIT)
    except RuntimeError as error:
        remedy = "export GLOO_SOCKET_IFNAME=lo on one machine, else the interface between nodes"
        return Finding("warn", "gloo", str(error).partition("\n")[0], remedy)
    return Finding("ok", "gloo", "available")


def nccl(dist: Any) -> Finding:
    """Whether torch was built with NCCL."""
    if dist.is_nccl_available():
        return Finding("ok", "nccl", "available")
    return Finding("warn", "nccl", "missing", "install a CUDA build of torch for several GPUs")

"""``rlframe doctor``: what this machine has, what is missing, and the next command."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from rlframe.host.host import current_host
from rlframe.host.packages import missing_hint

__all__ = ["Finding", "doctor", "examine"]

_GIB = 2**30
_PACKAGES = ("torch", "transformers", "safetensors", "tensordict", "omegaconf", "pluggy")


@dataclass(frozen=True)
class Finding:
    """One line: how it is, what was looked at, what was found, and what to do about it."""

    state: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<5} {self.subject:<14} {self.found}"
        return f"{line}: {self.remedy}" if self.remedy else line


def doctor(arguments: argparse.Namespace) -> int:
    """Print all findings; 1 when one of them is a failure."""
    findings = []
    for finding in examine(Path(arguments.dir)):
        print(finding, flush=True)
        findings.append(finding)
    failed = sum(finding.state == "fail" for finding in findings)
    print(f"{failed} failures" if failed else "rlframe can run here")
    return 1 if failed else 0


def examine(run_dir: Path) -> Iterator[Finding]:
    """Look at Python, packages, plugins, devices, threads, memory and disk."""
    yield Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")
    missing = []
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, version(name))
        except PackageNotFoundError:
            missing.append(name)
            yield Finding("fail", name, "not installed", f"pip install {name}")
    yield from _plugins()
    if "torch" not in missing:
        yield from _torch()
    yield from _threads()
    yield from _space(run_dir)


def _plugins() -> Iterator[Finding]:
    host = current_host()
    for info in host.plugins:
        if info.error:
            remedy = f"fix it, or block it with --no-plugin {info.plugin}"
            blocked = info.error.startswith("blocked")
            yield Finding(
                "warn", "plugin", f"{info.plugin}: {info.error}", "" if blocked else remedy
            )
    for conflict in host.duplicates():
        yield Finding("warn", "plugin", conflict)
    offers = [component for info in host.plugins for component in info.components]
    ready = sum(missing_hint(component) is None for component in offers)
    yield Finding("ok", "components", f"{ready} of {len(offers)} available, see rlframe plugins")


def _torch() -> Iterator[Finding]:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        yield Finding("fail", "torch", f"cannot be imported ({error})", "pip install --force torch")
        return
    count = torch.cuda.device_count()
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        memory = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield Finding("ok", f"cuda:{index}", f"{name}, {memory}")
    if not count:
        yield Finding("ok", "devices", "no GPU, runs use the CPU")
    if not dist.is_available():
        yield Finding("warn", "distributed", "this torch has none", "use one device (single)")
        return
    gloo = dist.is_gloo_available()
    remedy = "" if gloo else "install a torch build with gloo for several ranks on a CPU"
    yield Finding("ok" if gloo else "warn", "gloo", "available" if gloo else "missing", remedy)
    if count:
        nccl = dist.is_nccl_available()
        remedy = "" if nccl else "install a CUDA build of torch for several GPUs"
        yield Finding("ok" if nccl else "warn", "nccl", "available" if nccl else "missing", remedy)


def _threads() -> Iterator[Finding]:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    policy = os.environ.get("OMP_WAIT_POLICY", "")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{cores} cores, OMP_NUM_THREADS={threads or 'unset'}"
    if policy.upper() == "ACTIVE":
        remedy = "export OMP_WAIT_POLICY=PASSIVE"
        yield Finding("warn", "threads", f"{found}, OMP_WAIT_POLICY=ACTIVE wastes cores", remedy)
    elif threads.isdecimal() and int(threads) > cores:
        yield Finding("warn", "threads", found, f"export OMP_NUM_THREADS={cores}")
    else:
        yield Finding("ok", "threads", found)


def _space(run_dir: Path) -> Iterator[Finding]:
    place = run_dir.expanduser().absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            yield Finding("ok", "run folder", f"{run_dir} can be written")
    except OSError as error:
        yield Finding("fail", "run folder", f"{run_dir}: {error.strerror}", "use run.dir=FOLDER")
    yield _free("disk", place, "free some space, or use run.dir=FOLDER on another disk", 1, 5)
    shm = Path("/dev/shm")
    if shm.is_dir():
        yield _free("shared memory", shm, "in a container: docker run --shm-size=2g", 0.06, 1)


def _free(subject: str, place: Path, remedy: str, least: float, enough: float) -> Finding:
    free = shutil.disk_usage(place).free / _GIB
    found = f"{free:.1f} GiB free in {place}"
    if free >= enough:
        return Finding("ok", subject, found)
    return Finding("fail" if free < least else "warn", subject, found, remedy)

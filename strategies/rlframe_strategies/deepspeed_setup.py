"""DeepSpeed in this process: imported for the right device, its ops checked before they are built.

DeepSpeed compiles its ops when they are first used, into torch's cache of extensions. A build that
was killed leaves a lock there, for which every later start would wait for ever.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlframe.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from rlframe.interfaces.strategy import RankInfo

__all__ = [
    "CPU_ADAM",
    "SHARED_MEMORY",
    "check_op",
    "import_deepspeed",
    "load_op",
    "start_deepspeed",
]

CPU_ADAM = "CPUAdamBuilder"
"""Adam on the host, for an offloaded optimiser."""
SHARED_MEMORY = "ShareMemCommBuilder"
"""DeepSpeed loads it wherever the device is a CPU of a Linux machine."""
_POLL_S = 0.5
_PROCESSES = Path("/proc")
_OLD_S = 1800.0
"""Age of a stale lock where the system does not say who has a file open."""


def import_deepspeed(device: torch.device) -> Any:
    """The package, for a kind of device; it is chosen by the first call in a process.

    Raises PluginError where the package is missing, ConfigError where the process uses DeepSpeed on
    another kind of device.
    """
    os.environ["DS_ACCELERATOR"] = device.type  # DeepSpeed reads it when it is imported
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise PluginError(
            "strategy 'deepspeed' needs the package 'deepspeed': pip install 'rlframe[deepspeed]'"
        ) from error
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator().device_name()
    if found != device.type:
        raise ConfigError(
            f"this process already uses DeepSpeed on '{found}', so that it cannot train on "
            f"'{device.type}': give the role a pool of its own"
        )
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed.*deprecated", FutureWarning)
    return deepspeed


def start_deepspeed(rank: RankInfo, device: torch.device, *, cpu_adam: bool) -> Any:
    """Import, check and load the ops that are needed, and use the process group that is there."""
    deepspeed = import_deepspeed(device)
    on_cpu = device.type == "cpu"
    os.environ["LOCAL_RANK"] = str(rank.local_rank if on_cpu else device.index or 0)
    if on_cpu and sys.platform == "linux":
        load_op(SHARED_MEMORY)
    if cpu_adam:
        load_op(CPU_ADAM)
    backend = "gloo" if on_cpu else "nccl"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the names of its ops
        deepspeed.comm.init_distributed(dist_backend=backend, verbose=False)
    return deepspeed


def load_op(builder: str) -> None:
    """Load one of DeepSpeed's ops; it is compiled where the cache does not have it.

    Raises PluginError as :func:`check_op` does, and where the compiler fails.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.git_version_info import installed_ops

    op = get_accelerator().create_op_builder(builder)
    if op is None:
        raise PluginError(f"this DeepSpeed has no '{builder}': pip install 'rlframe[deepspeed]'")
    if not installed_ops.get(op.name, False):
        check_op(op.name)
    try:
        op.load(verbose=False)
    except (RuntimeError, ImportError, OSError) as error:
        raise PluginError(
            f"strategy 'deepspeed': DeepSpeed's op '{op.name}' cannot be built: {error}"
        ) from error


def check_op(name: str) -> None:
    """Raise PluginError where building an op would fail or never end: no compiler, a stale lock.

    Waits while another process builds it.
    """
    _check_tools(name)
    lock = _build_folder(name) / "lock"
    while lock.exists():
        if not _is_held(lock):
            raise PluginError(
                f"strategy 'deepspeed': {lock} is left from a build of DeepSpeed's op '{name}' "
                "that was killed, and every start would wait for it; no process of this machine "
                f"has it open. Unless another machine builds there now: rm '{lock}'"
            )
        time.sleep(_POLL_S)


def _check_tools(name: str) -> None:
    from torch.utils.cpp_extension import get_cxx_compiler, is_ninja_available

    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and (beside / "ninja").exists():
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ['PATH']}"
    if not is_ninja_available():
        raise PluginError(
            f"strategy 'deepspeed' builds DeepSpeed's op '{name}' when it starts, for which ninja "
            "is missing: pip install ninja"
        )
    compiler: str = get_cxx_compiler()  # type: ignore[no-untyped-call]
    if shutil.which(compiler) is None:
        raise PluginError(
            f"strategy 'deepspeed' builds DeepSpeed's op '{name}' when it starts, for which the "
            f"C++ compiler '{compiler}' is missing: install g++, or name another in CXX"
        )


def _build_folder(name: str) -> Path:
    """Where torch builds and finds an extension; torch says it nowhere in public."""
    from torch.utils import cpp_extension

    return Path(cpp_extension._get_build_directory(name, verbose=False))


def _is_held(lock: Path) -> bool:
    """Whether a process has the lock open, as torch's builder has as long as it builds."""
    if not _PROCESSES.is_dir():
        try:
            return time.time() - lock.stat().st_mtime < _OLD_S
        except FileNotFoundError:
            return True
    wanted = str(lock.resolve())
    for handle in _PROCESSES.glob("[0-9]*/fd/*"):
        try:
            if os.readlink(handle) == wanted:
                return True
        except OSError:
            continue
    return not lock.exists()


def main() -> None:
    """Build every op that strategy 'deepspeed' uses on a CPU, so that no run has to."""
    import_deepspeed(torch.device("cpu"))
    for builder in (SHARED_MEMORY, CPU_ADAM):
        load_op(builder)


if __name__ == "__main__":
    main()

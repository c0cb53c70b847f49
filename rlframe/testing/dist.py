"""Run a function on several ranks of one machine: import once, fork, rendezvous through a file.

For tests of strategies, transports and protocols with gloo, inside pytest-xdist workers too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rlframe.interfaces.strategy import RankInfo

__all__ = ["RankError", "join", "run_ranks"]

_POLL_S = 0.01
_GRACE_S = 2.0
_OUTPUT_TAIL = 8000


class RankError(AssertionError):
    """A rank failed, died or ran out of time; the message shows what every rank printed."""


def run_ranks(
    fn: Callable[..., Any], world: int, *args: Any, timeout_s: float = 120.0
) -> list[Any]:
    """Call ``fn(rank_info, *args)`` in ``world`` forked processes; results by rank.

    Each rank has one compute thread. ``rank_info.init_method`` is a file store: no port is opened
    for it, so runs in parallel never collide. No process group is joined: pass ``rank_info`` to a
    strategy, or call :func:`join`. Arguments may be anything, results must pickle. When a rank
    fails, the others get two seconds and are killed; ``RankError`` shows every rank's output.
    """
    _import_heavy_modules()
    with tempfile.TemporaryDirectory(prefix="rlframe-ranks-") as folder:
        directory = Path(folder)
        ranks = [
            RankInfo(
                rank=rank,
                world=world,
                local_rank=rank,
                threads=1,
                init_method=f"file://{directory}/store" if world > 1 else None,
            )
            for rank in range(world)
        ]
        sys.stdout.flush()
        sys.stderr.flush()
        with _frozen_objects():
            pids = [_fork(directory, rank, fn, args) for rank in ranks]
        why = _wait(pids, timeout_s)
        if why:
            raise RankError(_report(why, directory, world))
        return [pickle.loads(_result(directory, rank).read_bytes()) for rank in range(world)]


def join(rank: RankInfo) -> None:
    """Join the default gloo group of a :func:`run_ranks` call."""
    from torch import distributed as dist

    store = dist.HashStore() if rank.world == 1 else None  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo", init_method=rank.init_method, store=store, rank=rank.rank, world_size=rank.world
    )
    dist.barrier()  # nobody ends while another still connects


def _import_heavy_modules() -> None:
    """What every rank would import anyway; after the fork it would cost each of them seconds."""
    import tensordict  # noqa: F401
    import torch.distributed.fsdp  # noqa: F401
    import transformers  # noqa: F401
    import transformers.modeling_utils  # noqa: F401


def _result(directory: Path, rank: int) -> Path:
    return directory / f"result-{rank}"


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Keep the children's garbage collector off what was made before the fork.

    A process group in the parent's garbage would be destroyed in a child too, where its threads do
    not exist: a hang or a crash at some later collection.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _fork(directory: Path, rank: RankInfo, fn: Callable[..., Any], args: tuple[Any, ...]) -> int:
    pid = os.fork()
    if pid == 0:
        _run_child(directory, rank, fn, args)
    return pid


def _run_child(
    directory: Path, rank: RankInfo, fn: Callable[..., Any], args: tuple[Any, ...]
) -> NoReturn:
    """The rank itself; never returns into the test process's code."""
    code = 1
    try:
        _redirect(directory / f"output-{rank.rank}")
        _isolate()
        value = fn(rank, *args)
        _result(directory, rank.rank).write_bytes(pickle.dumps(value))
        code = 0
    except BaseException:  # whatever it was, the parent shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _isolate() -> None:
    """Forget the parent's process group and signal handlers; one thread, loopback only."""
    import torch
    from torch.distributed import distributed_c10d

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=2)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if distributed_c10d.is_initialized():
        # The parent's group must not be destroyed here: its threads were not forked with it.
        _kept.append(distributed_c10d._world)
        distributed_c10d._world = distributed_c10d._World()
        distributed_c10d.GroupMember.WORLD = None


_kept: list[Any] = []


def _wait(pids: list[int], timeout_s: float) -> str:
    """Wait for all; the reason why it went wrong, or an empty string."""
    live, deadline, why = dict(enumerate(pids)), time.monotonic() + timeout_s, ""
    try:
        while live and time.monotonic() < deadline:
            for rank, pid in list(live.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del live[rank]
                    code = os.waitstatus_to_exitcode(status)
                    if code and not why:
                        why = f"rank {rank} {_ended(code)}"
                        deadline = min(deadline, time.monotonic() + _GRACE_S)
            time.sleep(_POLL_S)
        if live and not why:
            names = ", ".join(map(str, live))
            why = f"no end after {timeout_s:g} s of rank {names}"
            _ask_for_stacks(live)
    finally:
        _kill(live)
    return why


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else "failed"


def _ask_for_stacks(live: dict[int, int]) -> None:
    for pid in live.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(0.2)


def _kill(live: dict[int, int]) -> None:
    for pid in live.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in live.values():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _report(why: str, directory: Path, world: int) -> str:
    parts = [f"{why} of {world} ranks"]
    for rank in range(world):
        file = directory / f"output-{rank}"
        text = file.read_text(errors="replace")[-_OUTPUT_TAIL:] if file.exists() else ""
        parts.append(f"--- rank {rank} ---\n{text.strip() or '(nothing printed)'}")
    return "\n".join(parts)

"""One test: a program's process, started with fewer rights, watched until it ends."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from rlframe_plugins.rewards.sandbox.files import written_bytes
from rlframe_plugins.rewards.sandbox.limits import MEGABYTE, Limits
from rlframe_plugins.rewards.sandbox.tree import Namespace, Tree, resident_bytes

__all__ = ["Ended", "Program", "run_program"]

_TICK_S = 0.05
_CHUNK = 65536
_TROUBLE = 3
"""Descriptor on which a child says why it cannot become the program."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: ``why`` is empty where it did so by itself."""

    why: str
    code: int
    """Exit status; minus the signal that ended it."""
    output: bytes


@dataclass(frozen=True)
class Program:
    """What to start, and how."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: str
    limits: Limits
    restrict: Callable[[], None]
    """Called in the new process before the program: gives up rights."""


def run_program(
    program: Program, input_: bytes, seconds: float, below: Namespace | Tree, control: int
) -> Ended:
    """Run to its end or to a limit; nothing that it started is left.

    Raises EOFError when ``control`` ends (who asked is gone), RuntimeError where the program cannot
    be started.
    """
    with tempfile.TemporaryFile(dir=program.folder) as source:
        source.write(input_)
        source.seek(0)
        output, theirs = os.pipe()
        trouble, told = os.pipe()
        child = os.fork()
        if child == 0:
            _become(program, source, theirs, told)
    os.close(theirs)
    os.close(told)
    if isinstance(below, Tree):
        below.child = child
    try:
        said = _all(trouble)
        if said:
            raise RuntimeError(said.decode(errors="replace"))
        return _watch(program, child, output, seconds, below, control)
    finally:
        os.close(output)
        os.close(trouble)
        below.end()


def _become(program: Program, source: BinaryIO, output: int, told: int) -> None:
    """In the child: never returns."""
    try:
        os.setsid()
        os.dup2(source.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if told != _TROUBLE:
            os.dup2(told, _TROUBLE, inheritable=False)
        os.closerange(_TROUBLE + 1, 4096)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(program.folder)
        program.restrict()
        os.execve(program.command[0], list(program.command), program.environment)
    except BaseException as error:
        os.write(_TROUBLE, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def _all(descriptor: int) -> bytes:
    """What is written until it is closed, which starting the program does."""
    parts = []
    while part := os.read(descriptor, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def _watch(
    program: Program,
    child: int,
    output: int,
    seconds: float,
    below: Namespace | Tree,
    control: int,
) -> Ended:
    os.set_blocking(output, False)
    deadline, printed = time.monotonic() + seconds, bytearray()
    end = _end_of(child)
    listening = True
    try:
        with selectors.DefaultSelector() as ready:
            for one in (control, output, *end):
                ready.register(one, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                tick = _TICK_S if listening or end else _TICK_S / 10
                events = ready.select(max(0.0, min(tick, left)))
                if any(key.fd == control for key, _ in events):
                    raise EOFError
                status = _status(child)
                if listening and not _read(output, printed, program.limits.output_kb * 1024):
                    ready.unregister(output)
                    listening = False
                why = _broken(program, printed, left, below)
                if status is not None or why:
                    return Ended(why, status or 0, bytes(printed))
    finally:
        for one in end:
            os.close(one)


def _end_of(child: int) -> list[int]:
    """A descriptor that becomes readable when a child ends, where the system has one."""
    if sys.platform != "linux":
        return []
    return [os.pidfd_open(child)]


def _status(child: int) -> int | None:
    """The exit status once the child has ended; it stays to be reaped."""
    done = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if done is None:
        return None
    killed = done.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
    return -done.si_status if killed else done.si_status


def _read(output: int, printed: bytearray, most: int) -> bool:
    """Take what is there; False at its end."""
    while len(printed) <= most:
        try:
            part = os.read(output, _CHUNK)
        except BlockingIOError:
            return True
        if not part:
            return False
        printed += part
    return True


def _broken(program: Program, printed: bytearray, left: float, below: Namespace | Tree) -> str:
    """Which limit is passed; empty where none is."""
    limits = program.limits
    if len(printed) > limits.output_kb * 1024:
        return "output"
    if left <= 0:
        return "time"
    if isinstance(below, Tree) and written_bytes(program.folder) > limits.disk_mb * MEGABYTE:
        return "disk"
    if sys.platform != "linux":
        return ""
    running = below.running()
    if len(running) > limits.processes:
        return "processes"
    return "memory" if resident_bytes(running) > limits.memory_mb * MEGABYTE else ""

"""No process of vLLM outlives the one that started it, whatever ended that one.

Run as a script beside that one it is a guard: it holds one end of a pipe, and when the other closes
it kills what the other process had started. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["end_group", "end_with", "guarded"]

_POLL_S = 0.5


def guarded(folder: Path | None = None) -> subprocess.Popen[bytes]:
    """A guard of this process's descendants; keep it, it acts when its standard input closes.

    It removes ``folder`` too.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(folder or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_with(peer: socket.socket) -> None:
    """Kill this process's group once the other side of a socket is gone.

    From a thread, so that a busy event loop changes nothing.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(peer, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        poll.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="rlframe-mortal", daemon=True).start()


def end_group(leader: int, limit_s: float) -> None:
    """Kill a process group, and wait until none of it runs: a kill takes its time."""
    end = time.monotonic() + limit_s
    while _runs(leader) and time.monotonic() < end:
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.02)


def _runs(leader: int) -> bool:
    """Whether a process of the group has not ended; one that nobody has waited for yet has."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(group) == leader and state not in ("Z", "X"):
                return True
    return False


def _descendants(roots: set[int], known: dict[int, str]) -> dict[int, str]:
    """Processes below ``roots`` or below known ones that live, and when each started."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state not in ("Z", "X"):
                found[int(entry.name)] = (int(parent), rest[17])
    ours = {pid: born for pid, born in known.items() if found.get(pid, (0, ""))[1] == born}
    more = True
    while more:
        below = roots | set(ours)
        fresh = {p: born for p, (up, born) in found.items() if up in below and p not in ours}
        fresh.pop(os.getpid(), None)
        ours |= fresh
        more = bool(fresh)
    return ours


def _guard(process: int, folder: str) -> None:
    known: dict[int, str] = {}
    while not select.select([0], [], [], _POLL_S)[0]:
        known = _descendants({process}, known)
    while known := _descendants(set(), known):
        for pid in known:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        select.select([], [], [], 0.05)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), sys.argv[2])

"""Ends what a driver's own Ray left behind, also when the driver was killed outright.

Run as a script beside the driver; it holds one end of a pipe and waits for the other to close. All
processes of the run carry a mark in their environment, which their children inherit.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["MARK", "Reaper", "marked", "sweep"]

MARK = "RLFRAME_RAY_RUN"
"""Name of the environment variable whose value tells one run's processes from all others."""
_POLL_S = 1.0
_SWEEP_S = 20.0


class Reaper:
    """The driver's side: ``mark`` is the run's, ``folder`` is removed in the end."""

    def __init__(self, mark: str, folder: Path) -> None:
        self.mark, self.folder = mark, folder
        command = [sys.executable, "-I", "-S", __file__, mark, str(folder), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Have it end what is left, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_SWEEP_S + 10)


def marked(mark: str) -> list[int]:
    """Ids of processes that were started with this mark."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def sweep(mark: str, folder: Path) -> None:
    """Kill what carries the mark, until nothing does; remove the folder."""
    deadline = time.monotonic() + _SWEEP_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _born(pid: int) -> str:
    """When a process started, which tells it from a later one of the same id; empty: gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _main() -> None:
    mark, folder, driver = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    born = _born(driver)
    while born and _born(driver) == born:
        ready, _, _ = select.select([0], [], [], _POLL_S)
        if ready and not os.read(0, 1):
            break
    sweep(mark, folder)


if __name__ == "__main__":
    _main()

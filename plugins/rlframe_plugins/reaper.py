"""Ends what a driver left behind, also when it was killed outright: a folder, and processes.

Run as a script beside the driver; it holds one end of a pipe and waits for the other to close. The
processes of the driver's own Ray carry a mark in their environment, which their children inherit;
those of Ray overwrite it by their titles, but have a log file of the run's folder open.
Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MARK", "Reaper", "members", "sweep"]

MARK = "RLFRAME_RAY_RUN"
"""Name of the environment variable whose value tells one run's processes from all others."""
_POLL_S = 1.0
_SWEEP_S = 20.0
_BEAT_S = 60.0
"""How often the folder's time is set, so that others see that its driver lives."""


class Reaper:
    """The driver's side: ``folder`` is removed in the end.

    With the ``mark`` of a run its processes are killed before, all but the driver.
    """

    def __init__(self, folder: Path, mark: str = "") -> None:
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


def members(mark: str, folder: Path, but: Sequence[int] = ()) -> list[int]:
    """Ids of the processes that belong to a run, this one and those of ``but`` left out."""
    found, wanted, inside = [], f"{MARK}={mark}".encode(), f"{folder}/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), *but):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                opened = [os.readlink(entry / "fd" / name) for name in os.listdir(entry / "fd")]
            except OSError:
                continue
            if wanted in environment or any(path.startswith(inside) for path in opened):
                found.append(int(entry.name))
    return found


def sweep(mark: str, folder: Path, driver: int) -> None:
    """Kill what belongs to the run but the driver, until nothing does; remove the folder.

    Without a mark nothing is killed: whoever still writes into the folder makes it be tried again.
    """
    deadline = time.monotonic() + _SWEEP_S
    while mark and (left := members(mark, folder, (driver,))) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
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
    born, beat = _born(driver), time.monotonic()
    while born and _born(driver) == born:
        if time.monotonic() - beat >= _BEAT_S:
            beat = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(folder)
        ready, _, _ = select.select([0], [], [], _POLL_S)
        if ready and not os.read(0, 1):
            break
    sweep(mark, folder, driver)


if __name__ == "__main__":
    _main()

"""The processes below this one: what they hold, and ending them all."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

__all__ = ["Namespace", "Tree", "reap", "resident_bytes", "threads_of_user"]

_MOST_ROUNDS = 1000


def reap() -> bool:
    """Take leave of children that ended; whether any is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not pid:
            return True


def threads_of_user(uid: int) -> int:
    """Threads on this machine that belong to a user; 0 where /proc does not tell."""
    total = 0
    for entry in _processes():
        try:
            if os.stat(f"/proc/{entry}").st_uid == uid:
                total += len(os.listdir(f"/proc/{entry}/task"))
        except OSError:  # it has ended
            continue
    return total


class Namespace:
    """All other processes of a process namespace whose first process this is."""

    def running(self) -> list[int]:
        """Their ids."""
        return [pid for pid in _processes() if pid != 1]

    def end(self) -> None:
        """Kill them at once and wait until they are gone."""
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                if not reap():
                    return
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


class Tree:
    """Descendants of this process, which takes orphans (Linux); else the group of its child."""

    def __init__(self, child: int = 0) -> None:
        self.child = child

    def running(self) -> list[int]:
        """Their ids, parents first."""
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            below = _children(waiting.pop())
            found += below
            waiting += below
        return found

    def end(self) -> None:
        """Stop them, so that none starts another, kill them, wait until they are gone."""
        if self.child:
            _signal_group(self.child)
        for _ in range(_MOST_ROUNDS):
            self._stop()
            for pid in self.running():
                _signal(pid, signal.SIGKILL)
            if not reap():
                return
            time.sleep(0.002)
        raise TimeoutError("processes of the program do not end")

    def _stop(self) -> None:
        stopped: set[int] = set()
        while fresh := set(self.running()) - stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh


def resident_bytes(pids: list[int]) -> int:
    """Memory that processes hold, what they share counted for each."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return pages * resource.getpagesize()


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            found += [int(one) for one in text.split()]
    except OSError:  # it has ended, or there is no /proc
        return found
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or only zombies (macOS)
        return

"""No process of vLLM outlives the one that started it, whatever ended that one."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path

__all__ = ["die_with_parent", "end_with"]

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; Linux alone can."""
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)


def end_with(peer: socket.socket, folder: Path) -> None:
    """Kill this process's group, and remove ``folder``, once the other side of a socket is gone.

    From a thread, so that a busy event loop changes nothing.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(peer, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        poll.poll()
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="rlframe-mortal", daemon=True).start()

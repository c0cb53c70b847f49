"""The process that environments are forked from: it imports the user's class once.

It holds one end of a socket pair; the driver passes it a connection for every episode, for which it
forks a child. When the driver is gone, the connection ends, and it kills every child and what those
have started; when it is killed itself, Linux kills the children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import glob
import json
import os
import pickle
import select
import signal
import socket
import sys

from rlframe_plugins.envs.tools.wire import receive, receive_exactly, send
from rlframe_plugins.envs.tools.worker import serve

__all__ = ["FORK", "KILL", "main"]

FORK, KILL = b"F", b"K"
_POLL_S = 0.5
_DIE_WITH_PARENT, _ADOPT = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux."""


def main(descriptor: int) -> None:
    """Serve the driver until it is gone."""
    control = socket.socket(fileno=descriptor)
    hello = receive(control)
    if hello is None:
        return
    source, path = pickle.loads(hello)
    sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
    _be_quiet()
    try:
        user = source.load()
    except Exception as error:
        send(control, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(_ADOPT, 1)
    send(control, json.dumps({"pid": os.getpid()}).encode())
    children: set[int] = set()
    # What is there now is never looked at again by the children's collector, so it stays shared.
    gc.freeze()
    try:
        while _serve(control, user, children, libc):
            pass
    finally:
        for pid in children:
            _kill(pid)
        _end_orphans()


def _serve(
    control: socket.socket, user: type[object], children: set[int], libc: ctypes.CDLL | None
) -> bool:
    """One request of the driver, or one look at the children; False when it is gone."""
    _reap(children)
    ready, _, _ = select.select([control], [], [], _POLL_S)
    if not ready:
        return True
    kind, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if kind == FORK and descriptors:
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_child(descriptors[0], user, libc)
        os.close(descriptors[0])
        children.add(pid)
        return True
    if kind == KILL:
        pid = int.from_bytes(receive_exactly(control, 8) or b"", "big")
        if pid in children:
            _kill(pid)
        return True
    return False


def _become_child(descriptor: int, user: type[object], libc: ctypes.CDLL | None) -> None:
    """Play one episode and end this process."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if libc is not None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    try:
        serve(socket.socket(fileno=descriptor), user)
    finally:
        os._exit(0)


def _be_quiet() -> None:
    """What tools print goes nowhere: neither into the driver's terminal nor over any bound."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _reap(children: set[int]) -> None:
    """Notice children that ended, and end what they left: in their group, then anywhere."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            ended = None
        if ended is None:
            break
        if ended.si_pid in children:
            _kill(ended.si_pid)  # before its number may be another's
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, 0)
        children.discard(ended.si_pid)
    if not children:
        _end_orphans()


def _end_orphans() -> None:
    """End the processes that episodes have started in sessions of their own and left behind.

    They are this one's children now. While an episode runs, one of them may still be of use to it.
    """
    with contextlib.suppress(OSError):
        for place in glob.glob("/proc/self/task/*/children"):
            with open(place, encoding="ascii") as file:
                for pid in file.read().split():
                    _kill(int(pid))


def _kill(pid: int) -> None:
    """The child and what it has started."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The worker's side of the process that holds its engine: calls, answers, its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any

from rlframe import RolloutError
from rlframe_plugins.rollouts.hosted.frames import HEAD, framed, length_of, opened
from rlframe_plugins.rollouts.hosted.mortal import end_group

__all__ = ["GRACE_S", "Channel", "Link"]

GRACE_S = 10.0
"""How long an engine may take to end by itself."""
_TAIL = 3000
"""Characters of what the processes wrote, shown where they failed."""


class Channel:
    """Asks a :class:`.host.Host` at the other end of a socket; ``name`` is its engine's for users.

    Calls may come from any thread. Once the other end is gone every call raises ``RolloutError``.
    """

    def __init__(self, name: str, peer: socket.socket) -> None:
        self._name, self._socket, self._numbers = name, peer, itertools.count()
        self._sending, self._waiting = threading.Lock(), dict[int, Future[Any]]()
        self._gone = ""
        threading.Thread(target=self._read, name="rlframe-host", daemon=True).start()

    @property
    def gone(self) -> bool:
        """Whether the other end is."""
        return bool(self._gone)

    def ask(self, verb: str, *arguments: Any) -> tuple[int, Future[Any]]:
        """Send; the number of the message and the answer to come."""
        number, future = next(self._numbers), Future[Any]()
        self._waiting[number] = future
        self._send((number, verb, arguments))
        if self._gone:  # the reader may have left before it saw this one
            self._fail_all()
        return number, future

    def call(self, timeout_s: float, verb: str, *arguments: Any) -> Any:
        """Send and wait. Raises RolloutError, also where no answer comes in time."""
        number, future = self.ask(verb, *arguments)
        try:
            return future.result(timeout_s)
        except NotInTime:
            self._waiting.pop(number, None)
            raise RolloutError(
                f"{self._name} did not {verb} within {timeout_s:g} s{self.aside()}"
            ) from None

    def abort(self, number: int) -> None:
        """End a request; its answer comes as ever."""
        self._send((-1, "abort", (number,)))

    def close(self) -> None:
        """End the engine."""
        if not self._gone:
            with contextlib.suppress(RolloutError):
                self.call(GRACE_S, "close")
            self._gone = f"{self._name}'s process was closed"
        self._socket.close()

    def aside(self) -> str:
        """What to add to an error of a call that took too long."""
        return ""

    def why(self) -> str:
        """Called once when the other end is gone: how it ended."""
        return f"{self._name} ended"

    # --- inside -------------------------------------------------------------------------------

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._sending, contextlib.suppress(OSError):  # the reader tells why it is gone
            self._socket.sendall(framed(message))

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, how, value = opened(self._take(length_of(self._take(HEAD))))
                self._settle(number, how, value)
        why = self.why()
        self._gone = self._gone or why
        self._fail_all()

    def _take(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 2**20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _settle(self, number: int, how: str, value: Any) -> None:
        future = self._waiting.pop(number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if how == "done":
            future.set_result(value)
        else:
            future.set_exception(RolloutError(value))

    def _fail_all(self) -> None:
        for number in list(self._waiting):
            self._settle(number, "failed", self._gone)


class Link(Channel):
    """Starts the process, asks it, and ends it with all that it started.

    ``module`` is what the process runs (see :mod:`.host`), and ``environment`` gives it all its
    variables, by its folder. Errors say how it ended and what it wrote last.
    """

    def __init__(
        self, name: str, module: str, environment: Callable[[Path], Mapping[str, str]]
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rlf-host-", dir=_short_folder()))
        self._log = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the link
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(self._folder)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment(self._folder),
                start_new_session=True,
            )
        super().__init__(name, mine)

    @property
    def pid(self) -> int:
        """The host's process, which leads the group of all others."""
        return self._process.pid

    def close(self) -> None:
        """End every process."""
        super().close()
        self._kill()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def aside(self) -> str:
        """See :class:`Channel`."""
        return f"; it wrote last: {self._tail()}"

    def why(self) -> str:
        """See :class:`Channel`."""
        self._kill()
        how = self._ending()
        return f"{self._name}'s process ended ({how}); it wrote last: {self._tail()}"

    def _kill(self) -> None:
        """Whatever is left of the process group."""
        end_group(self._process.pid, GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    def _ending(self) -> str:
        code = self._process.poll()
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _tail(self) -> str:
        try:
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), _TAIL, max(size - _TAIL, 0))
        except (OSError, ValueError):
            return "nothing"
        return data.decode(errors="replace").strip() or "nothing"


def _short_folder() -> str:
    """Where sockets go, whose paths may have 107 characters."""
    base = tempfile.gettempdir()
    return base if len(base) <= 40 else "/tmp"

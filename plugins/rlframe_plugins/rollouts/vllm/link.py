"""The worker's side of the process that holds its vLLM engine: calls, answers, its end."""

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
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any

from rlframe import RolloutError
from rlframe_plugins.rollouts.vllm.frames import HEAD, framed, length_of, opened
from rlframe_plugins.rollouts.vllm.mortal import end_group

__all__ = ["Link", "host_environment"]

_GRACE_S = 10.0
"""How long vLLM may take to end by itself."""
_TAIL = 3000
"""Characters of what the processes wrote, shown where they failed."""


def host_environment(threads: int, folder: Path, *, gpu: bool) -> dict[str, str]:
    """What the processes inherit beside this one's environment; the user's own settings win."""
    ours = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(folder),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if not gpu:
        ours |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    return ours | dict(os.environ) | {"VLLM_RPC_BASE_PATH": str(folder)}


class Link:
    """Starts the process, asks it, and ends it with all that it started.

    Calls may come from any thread. Once the process is gone every call raises ``RolloutError``,
    which says how it ended and what it wrote last.
    """

    def __init__(self, threads: int, *, gpu: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rlf-vllm-", dir=_short_folder()))
        self._log = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the link
        mine, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rlframe_plugins.rollouts.vllm.host"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self._folder)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=host_environment(threads, self._folder, gpu=gpu),
                start_new_session=True,
            )
        self._socket, self._numbers = mine, itertools.count()
        self._sending, self._waiting = threading.Lock(), dict[int, Future[Any]]()
        self._gone = ""
        threading.Thread(target=self._read, name="rlframe-vllm", daemon=True).start()

    @property
    def pid(self) -> int:
        """The host's process, which leads the group of all others."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
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
                f"vLLM did not {verb} within {timeout_s:g} s; it wrote last: {self._tail()}"
            ) from None

    def abort(self, number: int) -> None:
        """End a request; its answer comes as ever."""
        self._send((-1, "abort", (number,)))

    def close(self) -> None:
        """End every process."""
        if not self._gone:
            with contextlib.suppress(RolloutError):
                self.call(_GRACE_S, "close")
            self._gone = "vLLM's process was closed"
        self._kill()
        self._socket.close()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- inside -------------------------------------------------------------------------------

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._sending, contextlib.suppress(OSError):  # the reader tells why it is gone
            self._socket.sendall(framed(message))

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, how, value = opened(self._take(length_of(self._take(HEAD))))
                self._settle(number, how, value)
        self._kill()
        if not self._gone:
            self._gone = f"vLLM's process ended ({self._ending()}); it wrote last: {self._tail()}"
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

    def _kill(self) -> None:
        """Whatever is left of the process group."""
        end_group(self._process.pid, _GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)

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

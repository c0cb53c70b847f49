"""The driver's side of environments' processes: one an episode, forked from a process of its own.

An environment that hangs is killed, one that dies is noticed at once, and none outlives the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rlframe.errors import PluginError, RolloutError
from rlframe_plugins.envs.tools.source import Source
from rlframe_plugins.envs.tools.wire import LENGTH, MOST_BYTES, receive, send
from rlframe_plugins.envs.tools.zygote import FORK, KILL

__all__ = ["DiedError", "HungError", "Pool", "Remote"]

_START_S = 120.0
"""Longest time for the import of the user's class, seconds."""
_GRACE_S = 20.0
"""What a call may take beyond its own limit before its process is killed, seconds."""
_PATIENCE_S = 180.0
"""Longest time for what has no limit of its own (making the object, a forked child), seconds."""


class DiedError(Exception):
    """The process of an environment is gone."""


class HungError(Exception):
    """A call did not end in time and could not be interrupted: its process was killed."""


class Remote:
    """One environment in its process."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, zygote: _Zygote
    ) -> None:
        self._reader, self._writer, self._zygote = reader, writer, zygote
        self.pid = 0

    async def ask(self, command: str, limit_s: float = 0.0, **arguments: Any) -> dict[str, Any]:
        """Have the process do a command of ``Worker``; its reply.

        Raises DiedError where the process ends, HungError where it takes ``limit_s`` (0: minutes)
        and some more: the process interrupts itself before, if it can.
        """
        payload = pickle.dumps((command, arguments))
        most = limit_s + _GRACE_S if limit_s else _PATIENCE_S
        if not self.pid:  # it waits for its turn to be forked
            most += _PATIENCE_S
        try:
            async with asyncio.timeout(most):
                self._writer.write(LENGTH.pack(len(payload)) + payload)
                await self._writer.drain()
                size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
                if size > MOST_BYTES:
                    raise DiedError(f"the environment's process answered with {size} bytes")
                reply = json.loads(await self._reader.readexactly(size))
        except TimeoutError as error:
            self.kill()
            raise HungError(f"{command} took more than {most:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            raise DiedError(f"the environment's process ended in {command}") from error
        if not isinstance(reply, dict):
            raise DiedError("the environment's process answered with nonsense")
        self.pid = int(reply.get("pid", self.pid))
        return reply

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self.pid:
            self._zygote.kill(self.pid)

    def close(self) -> None:
        """End the episode: the process sees the end of its connection, or is killed."""
        self.kill()
        self._writer.close()


class Pool:
    """Environments of one class, ``most`` at once; the others wait."""

    def __init__(self, user: type[Any], most: int, given: Any = None) -> None:
        self._source, self._most, self._name = Source.of(user, given), most, user.__name__
        self._zygote: _Zygote | None = None
        self._lock = threading.Lock()
        self._gate: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    @asynccontextmanager
    async def remote(self) -> AsyncIterator[Remote]:
        """An environment that nobody has used, for one episode. Raises DiedError, PluginError."""
        async with self._turn():
            ours, theirs = socket.socketpair()
            try:
                zygote = await asyncio.to_thread(self._fork, theirs)
            except BaseException:
                ours.close()
                raise
            reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
            remote = Remote(reader, writer, zygote)
            try:
                yield remote
            finally:
                remote.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    def close(self) -> None:
        """End every process."""
        with self._lock:
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate[0] is not loop:
            self._gate = loop, asyncio.Semaphore(self._most)
        return self._gate[1]

    def _fork(self, theirs: socket.socket) -> _Zygote:
        """Have a child made that serves this connection; a zygote that died is replaced."""
        with theirs, self._lock:
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = _Zygote(self._source, self._name)
            try:
                self._zygote.fork(theirs)
            except OSError as error:
                self._zygote.close()
                self._zygote = None
                raise DiedError(f"the process that makes environments ended: {error}") from error
            return self._zygote


class _Zygote:
    """The process that the others are forked from."""

    def __init__(self, source: Source, name: str) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rlframe_plugins.envs.tools.zygote", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._end = weakref.finalize(self, _end, self._control, self._process)
        self._control.settimeout(_START_S)
        try:
            send(self._control, pickle.dumps((source, sys.path)))
            reply = receive(self._control)
        except OSError as error:
            self.close()
            raise RolloutError(f"env {name}: its process did not start: {error}") from error
        if reply is None:
            self.close()
            raise RolloutError(f"env {name}: its process ended while it imported the class")
        told = json.loads(reply)
        if "error" in told:
            self.close()
            raise PluginError(f"env {name} cannot be loaded in its process: {told['error']}")
        self.pid = int(told["pid"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, connection: socket.socket) -> None:
        """Raises OSError where it is gone."""
        socket.send_fds(self._control, [FORK], [connection.fileno()])

    def kill(self, pid: int) -> None:
        """Kill a child, unless all are gone."""
        with contextlib.suppress(OSError):
            self._control.sendall(KILL + pid.to_bytes(8, "big"))

    def close(self) -> None:
        self._end()


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

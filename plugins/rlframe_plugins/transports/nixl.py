"""Weights read by replicas out of trainers' memory: NIXL, over RDMA, TCP or shared memory."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import SyncError
from rlframe_plugins.transports.checksum import checksum
from rlframe_plugins.transports.copying import Bytes, fill
from rlframe_plugins.transports.files import DiskTransport, FileReceipt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["NixlTransport"]

_POLL_S = 0.0005


class NixlTransport(DiskTransport):
    """Trainers register a buffer a bucket; each replica reads what it needs, with no rank's help.

    Buffers stay registered from version to version. Receipts say which agent holds a bucket, and
    where; what is read is checked like a file. Nodes need no common folder.
    """

    def root(self) -> Path:
        """See :class:`DiskTransport`; no file is written."""
        return Path(tempfile.gettempdir())

    def connect(self, answer: Any) -> None:
        """See :class:`Transport`: agents meet when a replica first reads."""

    def discard(self, receipts: Sequence[Any]) -> None:
        """See :class:`Transport`: the next version goes into the same buffers."""

    def close(self) -> None:
        """See :class:`Transport`: memory of this process; that of workers ends with them."""
        for side in ("trainer", "replica"):
            held = _held.pop((self.key, side), None)
            if held is not None:
                held.close()

    # --- a trainer's memory --------------------------------------------------------------------

    def _write(
        self,
        rank: int,
        version: int,
        number: int,
        size: int,
        tensors: Iterable[Tensor],
        kind: torch.dtype,
    ) -> tuple[str, tuple[int, ...]]:
        room, path = self._room(rank, number, size)
        checks, at = [], 0
        for tensor in tensors:
            end = at + tensor.numel() * kind.itemsize
            checks.append(fill(room[at:end], tensor, kind))
            at = end
        return path, tuple(checks)

    def _keep(self, rank: int, version: int, number: int, body: bytes) -> str:
        room, path = self._room(rank, number, len(body))
        room[:] = np.frombuffer(body, np.uint8)
        return path

    def _room(self, rank: int, number: int, size: int) -> tuple[NDArray[np.uint8], str]:
        """Registered memory of a bucket, and how others find it."""
        held = self._agent("trainer")
        room = held.buffer((rank, number), size)
        metadata = base64.b64encode(held.agent.get_agent_metadata()).decode()
        return room, f"{room.ctypes.data}:{metadata}"

    # --- a replica's side ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, receipt: FileReceipt, rank: int) -> Iterator[Callable[[int, Bytes], int]]:
        address, _, metadata = receipt.path.partition(":")
        held = self._agent("replica")

        def read(at: int, into: Bytes) -> int:
            raw = into.reshape(-1).view(np.uint8)
            held.read(base64.b64decode(metadata), int(address) + at, raw, self.config.timeout_s)
            return checksum(raw)

        yield read

    def _agent(self, side: str) -> _Held:
        """Of this process; an agent cannot read its own memory, so each side has one."""
        if (self.key, side) not in _held:
            name = f"{side}-{socket.gethostname()}-{os.getpid()}-{self.key}"
            _held[self.key, side] = _Held(_make_agent(name))
        return _held[self.key, side]


@dataclass
class _Held:
    """This process's agent and what it has registered."""

    agent: Any
    buffers: dict[tuple[int, int], tuple[NDArray[np.uint8], Any]] = field(default_factory=dict)

    def buffer(self, key: tuple[int, int], size: int) -> NDArray[np.uint8]:
        """The first ``size`` bytes of a buffer that is registered once, and again if it grows."""
        if key in self.buffers and len(self.buffers[key][0]) < size:
            self.agent.deregister_memory(self.buffers.pop(key)[1])
        if key not in self.buffers:
            room = np.empty(size, np.uint8)
            self.buffers[key] = room, self._register(room)
        return self.buffers[key][0][:size]

    def read(
        self, metadata: bytes, address: int, into: NDArray[np.uint8], timeout_s: float
    ) -> None:
        """Fill ``into`` from another agent's memory. Raises OSError."""
        registered = self._register(into)
        handle = None
        try:
            name = self.agent.add_remote_agent(metadata)
            mine = self.agent.get_xfer_descs([(into.ctypes.data, into.nbytes, 0)], "DRAM")
            theirs = self.agent.get_xfer_descs([(address, into.nbytes, 0)], "DRAM")
            handle = self.agent.initialize_xfer("READ", mine, theirs, name)
            _wait(self.agent, handle, timeout_s)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the library's errors have no base of their own
            raise OSError(f"nixl: {error}; the trainer may be gone") from error
        finally:
            if handle is not None:
                self.agent.release_xfer_handle(handle)
            self.agent.deregister_memory(registered)

    def close(self) -> None:
        """Forget all buffers."""
        for _, registered in self.buffers.values():
            self.agent.deregister_memory(registered)
        self.buffers.clear()

    def _register(self, room: NDArray[np.uint8]) -> Any:
        return self.agent.register_memory([(room.ctypes.data, room.nbytes, 0, "")], "DRAM")


_held: dict[tuple[str, str], _Held] = {}


def _make_agent(name: str) -> Any:
    api = importlib.import_module("nixl._api")
    try:
        return api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    except Exception as error:  # noqa: BLE001 - the library's errors have no base of their own
        raise SyncError(f"nixl: no agent with the backend UCX: {error}") from error


def _wait(agent: Any, handle: Any, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    state = agent.transfer(handle)
    while state == "PROC":
        if time.monotonic() > end:
            raise OSError(f"a read is not done after {timeout_s:g} s (checkpoint.timeout_s)")
        time.sleep(_POLL_S)
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise OSError(f"a read ended in state {state}: the trainer may be gone")

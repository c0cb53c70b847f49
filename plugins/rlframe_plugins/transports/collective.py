"""Weights by collectives over a process group of trainers and replicas: gloo, or NCCL on GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError, SyncError
from rlframe.interfaces.checkpoint import BaseWeights, Codec, FetchedWeights, Transport
from rlframe.interfaces.strategy import RankInfo
from rlframe.weights.layout import Plan

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlframe.weights.moving import Mover

__all__ = ["CollectiveTransport"]


class CollectiveTransport(Transport):
    """Trainers and replicas meet in one exchange a bucket; no bytes touch a file.

    A rank that dies lets the others fail after ``checkpoint.timeout_s``; the old version serves.
    """

    together = True

    def __init__(self, config: Any = None, codec: Codec | None = None) -> None:
        super().__init__(config)
        if codec is not None and not codec.plain:
            raise ConfigError(
                "checkpoint.transport=collective sends plain elements: set checkpoint.codec=full, "
                "or take transport shm, disk or nixl"
            )
        self._address = ("", 0)

    def listen(self, rank: RankInfo) -> tuple[str, int]:
        """See :class:`Transport`: serve a store that all ranks meet at."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        local = rank.host in ("localhost", socket.gethostname())
        host = "127.0.0.1" if local and not _has_route(rank.host) else _address_of(rank.host)
        # Given only a port, the store would listen on every address of the machine.
        with socket.create_server((host, 0), backlog=1024) as server:
            port = int(server.getsockname()[1])
            store = TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(server.fileno()),
            )
        self._forget_former()
        _stores[self.key] = store
        return host, port

    def connect(self, answer: Any) -> None:
        """See :class:`Transport`."""
        self._address = answer

    def stage(
        self, plan: Plan, rank: int, version: int, views: Mapping[str, Tensor], *, full: bool
    ) -> Any:
        """See :class:`Transport`; sends, and returns once every replica has it."""
        device = next(iter(views.values())).device
        with self._told(version):
            self._mover(plan, rank, device).run(views)
        return None

    def fetch(
        self, plan: Plan, rank: int, version: int, receipts: Sequence[Any], base: BaseWeights | None
    ) -> FetchedWeights:
        """See :class:`Transport`."""
        import torch

        with self._told(version):
            mover = self._mover(plan, rank, torch.device("cpu"))
            if base is None:
                mover.release()
            # What serves stays as it is; the storage of the version before that is used again.
            tensors = mover.run({}, None if base is None else base.tensors)
        if not self.config.keep_memory:
            mover.release()
        return FetchedWeights(tensors, mover.received)

    @contextlib.contextmanager
    def _told(self, version: int) -> Iterator[None]:
        """Raise SyncError where ranks do not meet, or one goes; the next exchange meets anew."""
        try:
            yield
        except RuntimeError as error:
            _movers.pop(self.key, None)
            raise SyncError(
                f"version {version}: a rank of the exchange is gone: {error}"
            ) from error

    def _mover(self, plan: Plan, rank: int, device: torch.device) -> Mover:
        from rlframe.weights.moving import Mover

        if self.key not in _movers:
            self._forget_former()
            _movers[self.key] = Mover(
                plan,
                rank,
                device,
                bucket_mib=self.config.bucket_mib,
                connect=lambda parts, me: self._join(parts, me, device),
            )
        return _movers[self.key]

    def _forget_former(self) -> None:
        """What this process held for exchanges before :meth:`renew`."""
        _movers.pop(self.former, None)
        _stores.pop(self.former, None)

    def _join(
        self, parts: Sequence[tuple[int, ...]], rank: int, device: torch.device
    ) -> _Group | None:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        for number, members in enumerate(parts):
            if rank in members:
                host, port = self._address
                store = _stores.get(self.key) or TCPStore(host, port, is_master=False)
                _stores[self.key] = store
                named = PrefixStore(f"weights-{number}", store)
                wait = timedelta(seconds=self.config.timeout_s)
                return _Group(_backend(device, named, members.index(rank), len(members), wait))
        return None


@dataclass(frozen=True)
class _Group:
    """A group outside torch's default one, so that both pools keep their own."""

    group: Any

    def all_gather(self, whole: Tensor, mine: Tensor) -> None:
        if mine.device.type == "cpu":
            from rlframe.weights.links import in_pairs

            in_pairs(self.group, whole, mine)
        else:
            self.group._allgather_base(whole, mine).wait()

    def all_to_all(
        self, incoming: Tensor, outgoing: Tensor, receive: list[int], send: list[int]
    ) -> None:
        self.group.alltoall_base(incoming, outgoing, receive, send).wait()


_movers: dict[str, Mover] = {}
_stores: dict[str, Any] = {}


def _backend(device: torch.device, store: Any, rank: int, size: int, wait: timedelta) -> Any:
    from torch import distributed as dist

    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, wait)


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "127.0.0.1"


def _has_route(host: str) -> bool:
    return not _address_of(host).startswith("127.")

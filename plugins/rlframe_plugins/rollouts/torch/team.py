"""The ranks of one generation replica: the first one speaks, the others hear and do the same."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from rlframe.errors import ConfigError, RolloutError

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe.interfaces.strategy import RankInfo

__all__ = ["Team"]

_FRAME = 4096
"""Bytes of a message that go in one exchange; the first 8 are its length."""
_IDLE = timedelta(days=3650)
_REASON_S = 2.0
"""How long the reason of a rank that failed may take to be known after its connection closed."""


class Team:
    """``index`` 0 leads.

    Every exchange is bounded by ``timeout_s``, but for hearing: a follower may be idle for as long
    as its leader lives. The groups are apart from torch's default one, so that they can be used
    beside training, from other threads. After a failure nothing works: ``RolloutError`` says who
    failed and why.
    """

    def __init__(
        self, members: Sequence[int], rank: RankInfo, device: torch.device, timeout_s: float
    ) -> None:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.members, self.index = tuple(members), members.index(rank.rank)
        self._wait = timedelta(seconds=timeout_s)
        self._origin = _store(rank)
        name = f"generation-{members[0]}"
        number = self._origin.add(f"{name}-made-by-{rank.rank}", 1)
        self._store = PrefixStore(f"{name}-{number}", self._origin)
        self._failure = ""
        # The bounded group first: whoever has met there is alive.
        compute = self._group("compute", device, self._wait)
        control = self._group("control", torch.device("cpu"), _IDLE)
        self._groups: list[Any] = [compute, control]

    @property
    def size(self) -> int:
        """Ranks of the replica."""
        return len(self.members)

    @property
    def broken(self) -> bool:
        """Whether a rank has failed, or the team has ended."""
        return bool(self._failure) or not self._groups

    # --- what ranks do together ---------------------------------------------------------------

    def tell(self, what: str, *args: Any) -> None:
        """Say to every follower what to do; returns once each has heard it."""
        body = pickle.dumps((what, args))
        frame = bytearray(_FRAME)
        frame[:8] = len(body).to_bytes(8, "little")
        frame[8 : 8 + len(body)] = body[: _FRAME - 8]
        self._broadcast(1, torch.frombuffer(frame, dtype=torch.uint8))
        if len(body) > _FRAME - 8:
            self._broadcast(1, torch.frombuffer(bytearray(body[_FRAME - 8 :]), dtype=torch.uint8))

    def hear(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for what the leader says."""
        frame = torch.empty(_FRAME, dtype=torch.uint8)
        self._broadcast(1, frame, _IDLE)
        data = frame.numpy().tobytes()
        size = int.from_bytes(data[:8], "little")
        body = data[8 : 8 + size]
        if size > _FRAME - 8:
            rest = torch.empty(size - (_FRAME - 8), dtype=torch.uint8)
            self._broadcast(1, rest)
            body += rest.numpy().tobytes()
        what, args = pickle.loads(body)
        return what, args

    def share(self, tensor: Tensor) -> None:
        """Give the leader's contiguous tensor to all, in place."""
        self._broadcast(0, tensor)

    def sum(self, tensor: Tensor) -> None:
        """Add every rank's contiguous tensor, in place; bit-equal on all."""
        self._finish(lambda: self._groups[0].allreduce([tensor]))

    def gather(self, part: Tensor) -> Tensor | None:
        """Every rank's contiguous tensor, stacked, on the leader; None on the others."""
        from torch.distributed import GatherOptions

        options = GatherOptions()
        options.rootRank = 0
        whole = part.new_empty((self.size, *part.shape)) if self.index == 0 else None
        into = [] if whole is None else [list(whole.unbind(0))]
        self._finish(lambda: self._groups[0].gather(into, [part], options))
        return whole

    def meet(self) -> None:
        """Wait until every rank is here."""
        self._finish(lambda: self._groups[1].barrier())

    # --- the end ------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on, and why; what they wait for ends at once."""
        if not self._failure:
            self._failure = f"{type(error).__name__}: {error}"
            try:
                text = f"rank {self.members[self.index]}: {self._failure}"
                self._store.set(f"failed-{self.index}", text)
            except RuntimeError:  # the store is gone with the rank that kept it
                pass
            self.close()

    def close(self) -> None:
        """Leave; the connections end."""
        self._groups = []

    # --- inside -------------------------------------------------------------------------------

    def _group(self, name: str, device: torch.device, wait: timedelta) -> Any:
        from torch import distributed as dist

        store = dist.PrefixStore(name, self._store)  # type: ignore[attr-defined]
        try:
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = wait
                return dist.ProcessGroupNCCL(store, self.index, self.size, options)
            return dist.ProcessGroupGloo(store, self.index, self.size, wait)
        except RuntimeError as error:
            raise RolloutError(
                f"the ranks {self.members} of a generation replica did not all meet in "
                f"{self._wait.total_seconds():g} s (rollout.step_timeout_s): {error}"
            ) from error

    def _broadcast(self, group: int, tensor: Tensor, wait: timedelta | None = None) -> None:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._finish(lambda: self._groups[group].broadcast([tensor], options), wait)

    def _finish(self, start: Any, wait: timedelta | None = None) -> None:
        if self.broken:
            raise RolloutError(self._text(self._failure or "it has ended"))
        try:
            start().wait(wait or self._wait)
        except RuntimeError as error:
            reason = self._reason() or str(error)
            self._failure = self._failure or reason
            raise RolloutError(self._text(reason)) from error

    def _text(self, reason: str) -> str:
        return f"the generation replica of ranks {self.members} is broken: {reason}"

    def _reason(self) -> str:
        """What a rank that failed left for the others."""
        end = time.monotonic() + _REASON_S
        while time.monotonic() < end:
            for index in range(self.size):
                try:
                    if self._store.check([f"failed-{index}"]):
                        return self._store.get(f"failed-{index}").decode()
                except RuntimeError:
                    return ""
            time.sleep(0.05)
        return ""


def _store(rank: RankInfo) -> Any:
    """Where ranks of the worker group find each other: that of torch's group where there is one."""
    from torch import distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    if dist.is_initialized():
        return _get_default_store()
    if rank.init_method is None:
        raise ConfigError(f"{rank.world} ranks need an init_method to find each other")
    ranks = rank.meets or tuple(range(rank.world))
    place = ranks.index(rank.rank)
    found = dist.rendezvous(rank.init_method, place, len(ranks))  # type: ignore[attr-defined]
    return next(iter(found))[0]

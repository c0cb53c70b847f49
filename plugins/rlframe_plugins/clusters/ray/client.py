"""A rollout role as an engine to await: requests go out in bunches, completions stream back."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import ray

from rlframe.interfaces.rollout import RolloutEngine
from rlframe.layout import Layout
from rlframe.requests import Completion, Request
from rlframe_plugins.clusters.ray.failures import died_of, reason_of, translate
from rlframe_plugins.clusters.ray.resolver import Resolver

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe_plugins.clusters.ray.crew import Member

__all__ = ["RayRollout"]

_DEATH_S = 1.0
"""How long a death may take to be known after a peer saw the connection close."""


class RayRollout(RolloutEngine):
    """Spreads groups over replicas, each whole on one; the replica with fewest open requests.

    A replica is one worker, or several that generate together, of which the first takes requests.
    It may be pickled before its first use, for a collector in a process of its own; each copy is a
    client of its own, to which its completions stream.
    """

    def __init__(self, role: str, replicas: Sequence[Sequence[Member]]) -> None:
        self.config = self.spec = None  # type: ignore[assignment]
        self._arguments = (role, tuple(tuple(members) for members in replicas))
        self.role = role
        client = uuid.uuid4().hex
        self.replicas = [
            Replica(role, members[0], f"{client}/{members[0].rank}", members[1:])
            for members in replicas
        ]
        self._where: dict[int, tuple[Replica, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RayRollout, self._arguments

    async def generate(self, request: Request) -> Completion:
        """See :class:`RolloutEngine`."""
        replica, open_of_group = self._where.get(request.group_id) or (
            min(self.replicas, key=lambda one: one.open),
            0,
        )
        self._where[request.group_id] = (replica, open_of_group + 1)
        try:
            return await replica.generate(request)
        finally:
            _, left = self._where.pop(request.group_id)
            if left > 1:
                self._where[request.group_id] = (replica, left - 1)

    def abort(self, request_id: str) -> None:
        """See :class:`RolloutEngine`."""
        self._all("abort", request_id)

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """See :class:`RolloutEngine`."""
        self._all("pause", mode)

    def resume(self) -> None:
        """See :class:`RolloutEngine`."""
        self._all("resume")

    def sleep(self, level: int = 1) -> None:
        """See :class:`RolloutEngine`."""
        self._all("sleep", level)

    def wake(self) -> None:
        """See :class:`RolloutEngine`."""
        self._all("wake")

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Weights do not pass through here: the checkpoint engine gives them to the workers."""
        raise NotImplementedError("weights reach the workers through the checkpoint engine")

    def layout(self, params: Layout) -> Layout:
        """See :class:`RolloutEngine`."""
        found: Layout = self._all("layout", params)[0]
        return found

    @property
    def version(self) -> int:
        """The lowest version among the replicas."""
        return int(min(self._all("version")))

    def stats(self) -> dict[str, float]:
        """Sums over the replicas."""
        total: dict[str, float] = {}
        for one in self._all("stats"):
            for name, value in one.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def close(self) -> None:
        """End the streams; the engines belong to their workers."""
        for replica in self.replicas:
            replica.close()

    def _all(self, name: str, *args: Any) -> list[Any]:
        try:
            refs = [r.member.actor.control.remote(self.role, name, *args) for r in self.replicas]
            return list(ray.get(refs))
        except ray.exceptions.RayError as error:
            raise translate(error, self.role, self.replicas[0].member) from error


class Replica:
    """One worker's engine: an outbox, and what waits for its completions.

    ``fellows`` hold the replica together with it: the death of one explains an error.
    """

    def __init__(
        self, role: str, member: Member, client: str, fellows: Sequence[Member] = ()
    ) -> None:
        self.role, self.member, self._client = role, member, client
        self._fellows = fellows
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._outbox: list[tuple[int, Request]] = []
        self._resolver: Resolver | None = None
        self._lock = threading.Lock()
        self._failure: Exception | None = None

    @property
    def open(self) -> int:
        """Requests without a completion yet."""
        return len(self._waiting)

    async def generate(self, request: Request) -> Completion:
        """Put the request with the others of this moment, and wait."""
        if self._failure is not None:
            raise self._failure
        self._listen()
        loop = asyncio.get_running_loop()
        key = next(self._keys)
        future: asyncio.Future[Completion] = loop.create_future()
        with self._lock:
            self._waiting[key] = future
            if not self._outbox:
                loop.call_soon(self._send)
            self._outbox.append((key, request))
        try:
            return await future
        except asyncio.CancelledError:
            self.member.actor.control.remote(self.role, "abort", request.request_id)
            raise
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """Stop listening."""
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None

    def _send(self) -> None:
        with self._lock:
            bunch, self._outbox = self._outbox, []
        try:
            self.member.actor.submit.remote(self.role, self._client, bunch)
        except ray.exceptions.RayError as error:
            self._fail(translate(error, self.role, self.member))

    def _listen(self) -> None:
        if self._resolver is None:
            self._resolver = Resolver()
            self._resolver.submit(self._read())

    async def _read(self) -> None:
        """Give completions to whoever waits; the end of the stream is a failure of the worker."""
        try:
            stream = self.member.actor.completions.options(num_returns="streaming")
            async for ref in stream.remote(self._client):
                found = await ref
                failed = [one for _, one in found if isinstance(one, Exception)]
                if failed and self._failure is None:
                    await self._look_at_fellows(failed[0])
                for key, outcome in found:
                    self._give(key, outcome)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - told to every request
            self._fail(translate(error, self.role, self.member))

    async def _look_at_fellows(self, error: Exception) -> None:
        """Tell everybody of a death that explains the error: a closed connection shows before."""
        if not self._fellows or not reason_of(error):
            return
        end = time.monotonic() + _DEATH_S
        dead = await died_of(error, self.role, self._fellows)
        while dead is None and time.monotonic() < end:
            await asyncio.sleep(_DEATH_S / 10)
            dead = await died_of(error, self.role, self._fellows)
        if dead is not None:
            self._fail(dead)

    def _give(self, key: int, outcome: Completion | Exception) -> None:
        future = self._waiting.get(key)
        if future is not None:
            future.get_loop().call_soon_threadsafe(_settle, future, outcome)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for key in list(self._waiting):
            self._give(key, error)


def _settle(future: asyncio.Future[Completion], outcome: Completion | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

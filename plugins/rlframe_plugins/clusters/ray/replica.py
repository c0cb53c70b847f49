"""One replica of a rollout role, from its client's side: requests go out in bunches."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray

from rlframe.errors import WorkerError
from rlframe.requests import Completion, Request
from rlframe_plugins.clusters.ray.failures import died_of, reason_of, translate
from rlframe_plugins.clusters.ray.resolver import Resolver
from rlframe_plugins.rollouts.replicas import Replica, ReplicaLost, Seen

if TYPE_CHECKING:
    from rlframe_plugins.clusters.ray.crew import Member

__all__ = ["RayReplica"]

_DEATH_S = 1.0
"""How long a death may take to be known after a peer saw the connection close."""
_LOOK_S = 0.5
"""Between two looks at a process that is away."""
_FOR_GOOD = 5
"""Looks in a row that find a process dead, not about to be started again."""


class RayReplica(Replica):
    """One worker's engine: an outbox, and what waits for its completions.

    ``fellows`` hold the replica together with it: the death of one explains an error. Where it
    ``returns`` a death is ReplicaLost, and it is there again once its engine has weights; elsewhere
    every request gets the WorkerError.
    """

    def __init__(
        self,
        role: str,
        member: Member,
        client: str,
        fellows: Sequence[Member] = (),
        returns: bool = False,
    ) -> None:
        self.name, self.returns = str(member.rank), returns
        self.role, self.member, self._client = role, member, client
        self._fellows = fellows
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._outbox: list[tuple[int, Request]] = []
        self._resolver: Resolver | None = None
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._dead_looks = 0

    async def generate(self, request: Request, seen: Seen) -> Completion:
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
            self.abort(request.request_id)
            raise
        finally:
            self._waiting.pop(key, None)

    def abort(self, request_id: str) -> None:
        """See :class:`Replica`."""
        if self._failure is None:
            self.member.actor.control.remote(self.role, "abort", request_id)

    async def check(self) -> str:
        """Whether its process answers and its engine has weights."""
        if not self.returns:
            return ""
        return str(self._failure) if self._failure is not None else await self._asked()

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
            if self.returns:
                await self._until_back()

    async def _until_back(self) -> None:
        """Wait for the new process, then listen to it."""
        while why := await self._asked():
            self._failure = ReplicaLost(why)
            if self.gone_for_good:
                return
            await asyncio.sleep(_LOOK_S)
        self._failure = None
        self._reading = asyncio.ensure_future(self._read())
        self.on_back()

    async def _asked(self) -> str:
        """Why it cannot serve; empty where it can."""
        try:
            version = await _awaited(self.member.actor.control.remote(self.role, "version"))
        except ray.exceptions.RayError as error:
            dead = isinstance(error, ray.exceptions.ActorDiedError)
            self._dead_looks = self._dead_looks + 1 if dead else 0
            self.gone_for_good = self._dead_looks >= _FOR_GOOD
            if isinstance(error, ray.exceptions.RayTaskError):
                return "it is started again and not set up yet"
            found = translate(error, self.role, self.member)
            return found.message if isinstance(found, WorkerError) else str(found)
        self._dead_looks = 0
        return "" if version >= 0 else "it is started again and has no weights yet"

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
        self.signs += 1
        future = self._waiting.get(key)
        if future is not None:
            future.get_loop().call_soon_threadsafe(_settle, future, outcome)

    def _fail(self, error: Exception) -> None:
        if self.returns and isinstance(error, WorkerError):
            error = ReplicaLost(error.message)
        self._failure = error
        for key in list(self._waiting):
            self._give(key, error)


async def _awaited(ref: Any) -> Any:
    return await ref


def _settle(future: asyncio.Future[Completion], outcome: Completion | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

"""Workers that form rollout replicas: one that dies is started again, the others go on.

The workers of one replica live and die together. Ray starts a process again under the same handle,
so that whoever holds it finds the new one. Here it is told again what it was told at first, and
called again once :meth:`ReplicaCrew.admit` lets it in, between two versions of the weights.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import ray

from rlframe.errors import WorkerError
from rlframe_plugins.clusters.ray.actor import Where
from rlframe_plugins.clusters.ray.crew import Bound, Crew, Member, Sent
from rlframe_plugins.clusters.ray.failures import Death, died_of, reason_of, translate
from rlframe_plugins.clusters.ray.resolver import Resolver
from rlframe_plugins.clusters.ray.restarts import Restarts
from rlframe_plugins.clusters.ray.slots import Slots
from rlframe_plugins.rollouts.router import RouterOptions

__all__ = ["ReplicaCrew"]

_LONGEST_WAIT_S = 60.0
_DEATH_S = 5.0
"""How long a death may take to be known after another worker of the replica saw it."""
_TRY_S = 0.5
"""Between two looks whether Ray has started a process again."""

Line = Callable[[str], object]


class ReplicaCrew(Crew):
    """See the module. The crew fails as a whole only where none is left that may come back."""

    def __init__(
        self,
        name: str,
        members: Sequence[Member],
        resolver: Resolver,
        bound: Bound,
        restarts: Restarts,
    ) -> None:
        super().__init__(name, members, resolver, bound)
        self._restarts = restarts
        self.waits = RouterOptions(restarts.start_timeout_s, waits="cluster.start_timeout_s")
        self._told: list[Callable[[Member], Any]] = []
        self._away: set[int] = set()
        """Ranks that are not called."""
        self._ready: set[int] = set()
        self._over: set[int] = set()
        self._fellows = {rank: tuple(one) for one in restarts.replicas for rank in one}
        """By rank those of its replica, itself among them."""
        self._number = {r: n for n, one in enumerate(restarts.replicas) for r in one}
        self._deaths = [0] * len(restarts.replicas)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._lost: Line = print
        self._back: Line | None = None

    # --- for the group ------------------------------------------------------------------------

    def told(self, send: Callable[[Member], Any]) -> None:
        """See :class:`Crew`: a new process is told the same, in order."""
        self._told.append(send)

    def watch(self, lost: Line, ready: Line) -> None:
        """Look after the members from now on; see ``WorkerGroup.watch``."""
        self._lost, self._back = lost, ready
        for member in self.members:
            self._guard(member)

    def fellows_of(self, rank: int) -> tuple[int, ...]:
        """See :class:`Crew`."""
        return self._fellows[rank]

    @property
    def away(self) -> frozenset[int]:
        """See ``WorkerGroup``."""
        with self._lock:
            return frozenset(self._away)

    @property
    def arrived(self) -> bool:
        """Whether a new process waits for :meth:`admit`."""
        return bool(self._ready)

    def admit(self) -> bool:
        """Call the new processes from now on."""
        with self._lock:
            ready, self._ready = self._ready, set()
            for rank in ready:
                self.slots[rank] = Slots(self.members[rank].actor)
                self._away.discard(rank)
        return bool(ready)

    def call(
        self,
        role: str,
        what: str,
        send: Callable[[Member], Sent | None],
        finish: Callable[[dict[int, Any]], Any],
        bound: Bound | None = None,
    ) -> Future[Any]:
        """See :class:`Crew`; who is away is not called, and has no answer in ``finish``."""

        if len(self._away) == len(self.members) and self.failure is None:
            nobody: Future[Any] = Future()
            nobody.set_result(finish({}))
            return nobody

        def sent(member: Member) -> Sent | None:
            return None if member.rank in self._away else send(member)

        return super().call(role, what, sent, finish, bound)

    def close(self, wait_s: float) -> None:
        """See :class:`Crew`."""
        self._closing.set()
        super().close(wait_s)

    # --- answers ------------------------------------------------------------------------------

    async def _settle(
        self,
        role: str,
        what: str,
        sent: Sequence[Sent | None],
        finish: Callable[[dict[int, Any]], Any],
        bound: Bound,
        waited: float = 0.0,
    ) -> Any:
        """The answers of those that live. What is too late is ended, unless all are."""
        tasks = self._asked(sent)
        await asyncio.wait(tasks.values(), timeout=self._left(bound, waited))
        late = [rank for rank, task in tasks.items() if not task.done()]
        if len(late) == len(tasks):
            raise await self._too_late(role, what, tasks, bound)
        for rank in late:
            text = f"{what} is not done after {bound.seconds:g} s (cluster.{bound.option})"
            self._died(WorkerError(role, rank, self.members[rank].host, text))
            ray.kill(self.members[rank].actor, no_restart=False)
        others = await self._unexplained(role, tasks)
        if others:
            raise others[0]
        if self.failure is not None:
            raise self.failure
        return finish({r: t.result() for r, t in tasks.items() if t.done() and not t.exception()})

    async def _unexplained(self, role: str, tasks: dict[int, asyncio.Task[Any]]) -> list[Exception]:
        """Errors that no death explains, where a replica's other workers see one first."""
        found = {}
        for rank, task in tasks.items():
            error = task.exception() if task.done() else None
            if error is None:
                continue
            told = translate(error, role, self.members[rank])
            if isinstance(told, Death):
                self._died(told)
            else:
                found[rank] = told
        for rank, error in found.items():
            fellows = [self.members[one] for one in self._fellows[rank] if one != rank]
            until = time.monotonic() + _DEATH_S
            while fellows and rank not in self._away and reason_of(error):
                dead = await died_of(error, role, fellows)
                if dead is not None:
                    self._died(dead)
                elif time.monotonic() >= until:
                    break
                else:
                    await asyncio.sleep(_DEATH_S / 50)
        return [error for rank, error in found.items() if rank not in self._away]

    # --- deaths -------------------------------------------------------------------------------

    def _guard(self, member: Member) -> None:
        """Notice the end of a process at once."""
        self._resolver.submit(self._until_death(member))

    async def _until_death(self, member: Member) -> None:
        try:
            await member.actor.live.remote()
        except ray.exceptions.RayError as error:
            found = translate(error, self.name, member)
            if isinstance(found, WorkerError):
                self._died(found, member)

    def _died(self, error: WorkerError, member: Member | None = None) -> None:
        """Note a death once, end the replica, and bring it back in a thread of its own."""
        rank = error.rank
        with self._lock:
            stale = member is not None and member is not self.members[rank]
            if stale or self._closing.is_set() or (rank in self._away and rank not in self._ready):
                return
            again = self._note(rank)
        for one in self._fellows[rank]:
            if one != rank or not again:  # what is left of it waits for the dead one
                ray.kill(self.members[one].actor, no_restart=not again)
        self._go_on(error, again)

    def _note(self, rank: int) -> bool:
        """Count a death; whether the replica is started again. The lock is held."""
        number, ranks = self._number[rank], self._fellows[rank]
        self._ready.difference_update(ranks)
        self._away.update(ranks)
        self._deaths[number] += 1
        again = self._deaths[number] <= self._restarts.limit and self._back is not None
        if self._deaths[number] > self._restarts.limit:
            self._over.update(ranks)
        return again

    def _go_on(self, error: WorkerError, again: bool) -> None:
        rank = error.rank
        if len(self._over) == len(self.members) or self._back is None:
            self._fail(error)
            return
        count = f"{self._deaths[self._number[rank]]} of {self._restarts.limit} (run.max_restarts)"
        then = f"it is started again, {count}" if again else "no restart is left for it"
        self._lost(f"{self._named(rank)} on {error.host} is lost: {error.message}; {then}")
        if again:
            name = f"rlframe-revive-{rank}"
            threading.Thread(target=self._revive, args=(rank,), name=name, daemon=True).start()

    def _revive(self, rank: int) -> None:
        wait = self._restarts.wait_s * 2 ** (self._deaths[self._number[rank]] - 1)
        if self._closing.wait(min(wait, _LONGEST_WAIT_S)):
            return
        try:
            found = self._set_up(self._fellows[rank])
        except ray.exceptions.RayError as error:
            told = translate(error, self.name, self.members[rank])
            what = f"it could not be set up: {getattr(told, 'message', told)}"
            with self._lock:
                again = self._note(rank)
            self._go_on(WorkerError(self.name, rank, self.members[rank].host, what), again)
            return
        with self._lock:
            for member in found:
                self.members[member.rank] = member
            self._ready.update(member.rank for member in found)
        for member in found:
            self._guard(member)
        if self._back is not None:
            self._back(f"{self._named(rank)} on {found[0].host}")

    def _named(self, rank: int) -> str:
        ranks = self._fellows[rank]
        with_others = f" (ranks {', '.join(map(str, ranks))})" if len(ranks) > 1 else ""
        return f"rollout replica {ranks[0]}{with_others}"

    def _set_up(self, ranks: Sequence[int]) -> list[Member]:
        """The new processes of a replica, told what the first ones were. Raises RayError."""
        until = time.monotonic() + self._restarts.start_timeout_s
        where = [self._where(self.members[rank], until) for rank in ranks]
        meeting = self._restarts.meeting(where) if len(ranks) > 1 else ""
        found = [
            replace(self.members[rank], where=place, meeting=meeting)
            for rank, place in zip(ranks, where, strict=True)
        ]
        for send in self._told:
            told = [send(member) for member in found]
            ray.get(told, timeout=self._restarts.start_timeout_s)
        return found

    def _where(self, member: Member, until: float) -> Where:
        """Where its new process is; the old one may still answer before it is ended."""
        while True:
            try:
                found: Where = ray.get(member.actor.where.remote(), timeout=_TRY_S * 20)
                if found.pid != member.where.pid or found.node_id != member.where.node_id:
                    return found
                late: Exception = ray.exceptions.GetTimeoutError("its old process did not end")
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as error:
                late = error
            if time.monotonic() >= until or self._closing.wait(_TRY_S):
                raise late

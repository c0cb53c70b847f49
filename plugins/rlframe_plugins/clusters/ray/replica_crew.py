"""Workers that are a rollout replica each: one that dies is started again, the others go on.

Ray starts the process again under the same handle, so that whoever holds it finds the new one. Here
it is told again what it was told at first, and called again once :meth:`ReplicaCrew.admit` lets it
in, between two versions of the weights.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import ray

from rlframe.errors import WorkerError
from rlframe_plugins.clusters.ray.crew import Bound, Crew, Member, Sent
from rlframe_plugins.clusters.ray.failures import Death, translate
from rlframe_plugins.clusters.ray.resolver import Resolver
from rlframe_plugins.clusters.ray.slots import Slots
from rlframe_plugins.rollouts.router import RouterOptions

__all__ = ["ReplicaCrew", "Restarts"]

_LONGEST_WAIT_S = 60.0
_TRY_S = 0.5
"""Between two looks whether Ray has started a process again."""

Line = Callable[[str], object]


@dataclass(frozen=True)
class Restarts:
    """How often one replica is started again, and the pause before; it doubles up to a minute."""

    limit: int
    wait_s: float
    start_timeout_s: float


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
        self._deaths = dict.fromkeys(range(len(members)), 0)
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
        errors = self._errors(role, tasks)
        for error in errors:
            if isinstance(error, Death):
                self._died(error)
        others = [error for error in errors if not isinstance(error, Death)]
        if others:
            raise others[0]
        if self.failure is not None:
            raise self.failure
        return finish({r: t.result() for r, t in tasks.items() if t.done() and not t.exception()})

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
        """Note a death once, and bring the replica back in a thread of its own."""
        rank = error.rank
        with self._lock:
            stale = member is not None and member is not self.members[rank]
            if stale or self._closing.is_set() or (rank in self._away and rank not in self._ready):
                return
            again = self._note(rank)
        self._go_on(error, again)

    def _note(self, rank: int) -> bool:
        """Count a death; whether it is started again. The lock is held."""
        self._ready.discard(rank)
        self._away.add(rank)
        self._deaths[rank] += 1
        again = self._deaths[rank] <= self._restarts.limit
        if not again:
            self._over.add(rank)
        return again and self._back is not None

    def _go_on(self, error: WorkerError, again: bool) -> None:
        rank = error.rank
        if len(self._over) == len(self.members) or self._back is None:
            self._fail(error)
            return
        count = f"{self._deaths[rank]} of {self._restarts.limit} (run.max_restarts)"
        then = f"it is started again, {count}" if again else "no restart is left for it"
        self._lost(f"rollout replica {rank} on {error.host} is lost: {error.message}; {then}")
        if again:
            name = f"rlframe-revive-{rank}"
            threading.Thread(target=self._revive, args=(rank,), name=name, daemon=True).start()

    def _revive(self, rank: int) -> None:
        wait = self._restarts.wait_s * 2 ** (self._deaths[rank] - 1)
        if self._closing.wait(min(wait, _LONGEST_WAIT_S)):
            return
        try:
            member = self._set_up(rank)
        except ray.exceptions.RayError as error:
            found = translate(error, self.name, self.members[rank])
            what = f"it could not be set up: {getattr(found, 'message', found)}"
            with self._lock:
                again = self._note(rank)
            self._go_on(WorkerError(self.name, rank, self.members[rank].host, what), again)
            return
        with self._lock:
            self.members[rank] = member
            self._ready.add(rank)
        self._guard(member)
        if self._back is not None:
            self._back(f"rollout replica {rank} on {member.host}")

    def _set_up(self, rank: int) -> Member:
        """The new process, told what the first one was. Raises RayError."""
        member = self.members[rank]
        until = time.monotonic() + self._restarts.start_timeout_s
        while True:
            try:
                where = ray.get(member.actor.where.remote(), timeout=_TRY_S * 20)
                break
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
                if time.monotonic() >= until or self._closing.wait(_TRY_S):
                    raise
        found = replace(member, where=where)
        for send in self._told:
            ray.get(send(found), timeout=self._restarts.start_timeout_s)
        return found

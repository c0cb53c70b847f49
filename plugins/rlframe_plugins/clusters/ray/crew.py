"""The actors of one pool and strategy: sending calls, noticing failures, ending all of them.

A group of ranks fails together: when one of them is dead or late, its peers may wait for it in a
collective for ever, so they are killed and every later call tells the first reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from rlframe.errors import WorkerError
from rlframe_plugins.clusters.ray.actor import Reply, Where
from rlframe_plugins.clusters.ray.answers import Answers
from rlframe_plugins.clusters.ray.failures import Death, died_of, reason_of, translate
from rlframe_plugins.clusters.ray.resolver import Resolver
from rlframe_plugins.clusters.ray.slots import Slots
from rlframe_plugins.rollouts.router import RouterOptions

__all__ = ["Bound", "Crew", "Member", "Sent"]

_GRACE_S = 3.0
"""How long peers of a rank that failed may take to end by themselves."""
_STACKS_S = 5.0
_LOOK_S = 0.1
"""How long it may take to see which answers are there."""


@dataclass(frozen=True)
class Member:
    """One rank's actor and where it runs."""

    actor: Any
    rank: int
    where: Where = field(default_factory=Where)
    meeting: str = ""
    """Where it finds the others of its replica, if not where all ranks meet."""

    @property
    def host(self) -> str:
        """Name of the machine."""
        return self.where.host


@dataclass(frozen=True)
class Sent:
    """What was sent to one rank: a reference to its answer, or a stream of its parts."""

    answer: Any
    streamed: bool = False


@dataclass(frozen=True)
class Bound:
    """Longest time of a call, seconds (0: never ended), and the option that says so."""

    seconds: float
    option: str = "call_timeout_s"


class Crew:
    """See the module. ``name`` is shown in messages; ``bound`` is that of its calls."""

    def __init__(
        self, name: str, members: Sequence[Member], resolver: Resolver, bound: Bound
    ) -> None:
        self.name, self.members = name, list(members)
        self.slots = [Slots(member.actor) for member in members]
        """By rank; only for what is sent in a call, one at a time."""
        self.failure: WorkerError | None = None
        self.waits: RouterOptions | None = None
        """How its clients wait for a replica that is away; None: a death is the end."""
        self.fellows: list[Crew] = [self]
        """All crews of the cluster, whose stacks are shown when a call is late."""
        self._resolver, self._bound = resolver, bound
        self._answers = Answers(resolver)
        self._order = threading.Lock()

    def call(
        self,
        role: str,
        what: str,
        send: Callable[[Member], Sent | None],
        finish: Callable[[dict[int, Any]], Any],
        bound: Bound | None = None,
    ) -> Future[Any]:
        """Send to every rank at once, in order with other calls; ``finish`` gets the answers."""
        if self.failure is not None:
            return _failed(self.failure)
        try:
            with self._order:
                sent = [send(member) for member in self.members]
        except ray.exceptions.RayError as error:
            return _failed(translate(error, role, self.members[0]))
        limit = bound or self._bound
        asked = {rank: one for rank, one in enumerate(sent) if one is not None}
        if any(one.streamed for one in asked.values()):
            return self._resolver.submit(self._settle(role, what, sent, finish, limit))
        return self._answers.gather(
            {rank: one.answer for rank, one in asked.items()},
            limit.seconds,
            finish,
            lambda waited: self._settle(role, what, sent, finish, limit, waited),
        )

    @property
    def away(self) -> frozenset[int]:
        """See ``WorkerGroup``."""
        return frozenset()

    @property
    def arrived(self) -> bool:
        """See ``WorkerGroup``."""
        return False

    def admit(self) -> bool:
        """See ``WorkerGroup``."""
        return False

    def watch(self, lost: Callable[[str], object], ready: Callable[[str], object]) -> None:
        """See ``WorkerGroup``: this crew survives no death."""

    def fellows_of(self, rank: int) -> tuple[int, ...]:
        """Ranks that live and die with this one."""
        return tuple(member.rank for member in self.members)

    def told(self, send: Callable[[Member], Any]) -> None:
        """Every member was told this at the start."""

    def close(self, wait_s: float) -> None:
        """Close the engines if they can be within ``wait_s``, then end the processes."""
        if self.failure is None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(
                    [member.actor.close.remote() for member in self.members],
                    num_returns=len(self.members),
                    timeout=wait_s,
                )
        self.kill()

    def kill(self) -> None:
        """End the processes."""
        for member in self.members:
            ray.kill(member.actor, no_restart=True)

    async def stacks(self) -> str:
        """Stacks of every member that answers."""
        parts = await asyncio.gather(*(self._stack(member) for member in self.members))
        return "\n".join(parts)

    # --- inside -------------------------------------------------------------------------------

    async def _settle(
        self,
        role: str,
        what: str,
        sent: Sequence[Sent | None],
        finish: Callable[[dict[int, Any]], Any],
        bound: Bound,
        waited: float = 0.0,
    ) -> Any:
        tasks = self._asked(sent)
        _, late = await asyncio.wait(
            tasks.values(),
            timeout=self._left(bound, waited),
            return_when=asyncio.FIRST_EXCEPTION,
        )
        failed = [t for t in tasks.values() if t.done() and t.exception() is not None]
        if failed:
            raise await self._first_failure(role, tasks)
        if late:
            raise await self._too_late(role, what, tasks, bound)
        return finish({rank: task.result() for rank, task in tasks.items()})

    def _asked(self, sent: Sequence[Sent | None]) -> dict[int, asyncio.Task[Any]]:
        """A task by rank that waits for its answer."""
        tasks = {
            rank: asyncio.ensure_future(_answer(one))
            for rank, one in enumerate(sent)
            if one is not None
        }
        for task in tasks.values():
            task.add_done_callback(_seen)
        return tasks

    def _left(self, bound: Bound, waited: float) -> float | None:
        return max(bound.seconds - waited, _LOOK_S) if bound.seconds else None

    async def _first_failure(self, role: str, tasks: Mapping[int, asyncio.Task[Any]]) -> Exception:
        """The reason of a failure; deaths explain what their peers report."""
        errors = self._errors(role, tasks)
        waiting = [task for task in tasks.values() if not task.done()]
        if waiting and not any(isinstance(e, Death) for e in errors):
            await asyncio.wait(waiting, timeout=_GRACE_S, return_when=asyncio.ALL_COMPLETED)
        if any(map(reason_of, errors)):
            # A closed connection is told by the peer of a dead rank before its death is known.
            await asyncio.sleep(1.0 if not any(isinstance(e, Death) for e in errors) else 0)
        later = self._errors(role, tasks)
        died = next((e for e in later if isinstance(e, Death)), None) or await self._probe(
            role, errors
        )
        first = died or errors[0]
        unfinished = any(not task.done() for task in tasks.values())
        if died is not None or unfinished:
            return self._fail(first)
        return first

    def _errors(self, role: str, tasks: Mapping[int, asyncio.Task[Any]]) -> list[Exception]:
        found = []
        for rank, task in tasks.items():
            error = task.exception() if task.done() else None
            if error is not None:
                found.append(translate(error, role, self.members[rank]))
        return found

    async def _probe(self, role: str, errors: Sequence[Exception]) -> Death | None:
        """Whether a rank that was not called, or has not answered yet, is dead."""
        for error in errors:
            if reason_of(error):
                return await died_of(error, role, self.members)
        return None

    async def _too_late(
        self, role: str, what: str, tasks: Mapping[int, asyncio.Task[Any]], bound: Bound
    ) -> Exception:
        late = [self.members[rank] for rank, task in tasks.items() if not task.done()]
        shown = "\n".join([await crew.stacks() for crew in self.fellows])
        print(f"stacks of all workers:\n{shown}", file=sys.stderr, flush=True)
        ranks = ", ".join(str(member.rank) for member in late)
        text = (
            f"{what} is not done after {bound.seconds:g} s on rank {ranks} "
            f"(cluster.{bound.option}); the stacks of all workers are on stderr and below"
        )
        return self._fail(WorkerError(role, late[0].rank, late[0].host, text, shown))

    def _fail(self, error: Exception) -> Exception:
        """Remember the first failure and end everybody; returns what to tell."""
        if self.failure is None:
            self.failure = (
                error
                if isinstance(error, WorkerError)
                else WorkerError(self.name, 0, self.members[0].host, str(error))
            )
            self.kill()
            return error
        return self.failure

    async def _stack(self, member: Member) -> str:
        head = f"--- {self.name}, rank {member.rank} on {member.host} ---"
        try:
            text = await asyncio.wait_for(_awaited(member.actor.stacks.remote()), _STACKS_S)
        except TimeoutError:
            text = f"no answer in {_STACKS_S:g} s: its interpreter is held by native code"
        except ray.exceptions.RayError as error:
            text = f"no answer: {type(error).__name__}"
        return f"{head}\n{text}"


def _seen(task: asyncio.Task[Any]) -> None:
    """A failure that nobody asks for any more (its group ended before) is not worth a message."""
    if not task.cancelled():
        task.exception()


async def _awaited(ref: Any) -> Any:
    return await ref


async def _answer(sent: Sent) -> Any:
    if not sent.streamed:
        return await sent.answer
    await sent.answer.completed()  # Waiting for a part by itself would fetch its columns.
    first, *stored = list(sent.answer)
    reply: Reply = await first
    if len(stored) > len(reply.bundles):
        await stored[-1]  # the exception of a generator that failed midway
    return replace(reply, stored=stored)


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future

"""Requests over replicas: least loaded, sticky, checked; what one loses another one answers.

A replica that loses a request, or fails two checks, takes no more until a check finds it well; what
it had goes on elsewhere from the tokens that are known of it, else from the prompt. A request is
answered once: only one attempt is under way for it at a time, and what ends later is not listened
to.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlframe.collecting.continuing import rest_of
from rlframe.errors import EngineError, RolloutError
from rlframe.requests import Completion, Request
from rlframe_plugins.rollouts.fleet import Fleet, Place, RouterOptions
from rlframe_plugins.rollouts.replicas import Replica, ReplicaLost, Seen

__all__ = ["Router", "RouterOptions"]

_REMEMBERED = 16384
"""Groups and sessions whose replica is known."""


@dataclass(eq=False)
class _Open:
    """A request under way: what is known of its response, and who has it."""

    request: Request
    loop: asyncio.AbstractEventLoop
    deadline: float | None
    seen: Seen = field(default_factory=Seen)
    place: Place | None = None
    aborted: bool = False
    why: str = "it was taken to be down"
    """What the last replica was lost for."""

    def left(self) -> float | None:
        """Seconds to its deadline."""
        return None if self.deadline is None else max(self.deadline - self.loop.time(), 0.0)

    @property
    def over(self) -> bool:
        """Whether it should end with what it has."""
        return self.aborted or (self.deadline is not None and self.loop.time() >= self.deadline)


class Router:
    """See the module. ``tell`` gets a line about every loss and return of a replica."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        options: RouterOptions | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.name, self._options = name, options or RouterOptions()
        quiet: Callable[[str], None] = lambda line: None  # noqa: E731
        self._fleet = Fleet(name, replicas, self._options, tell or quiet, lambda: bool(self._open))
        self._kept: OrderedDict[object, Place] = OrderedDict()
        self._open: dict[int, _Open] = {}
        self._keys = itertools.count()
        self._retries = 0

    async def generate(self, request: Request) -> Completion:
        """See ``RolloutEngine``. Raises RolloutError where no replica can answer."""
        loop = asyncio.get_running_loop()
        limit = request.deadline_s
        one = _Open(request, loop, None if limit is None else loop.time() + limit)
        key = next(self._keys)
        self._open[key] = one
        self._fleet.watch(loop)
        try:
            return await self._answer(one)
        finally:
            del self._open[key]

    def abort(self, request_id: str) -> None:
        """End the requests of that id with what they have."""
        for one in [o for o in self._open.values() if o.request.request_id == request_id]:
            one.aborted = True
            if one.place is not None:
                one.place.replica.abort(request_id)
        self._fleet.changed()

    def abort_all(self) -> None:
        """End every request with what it has."""
        for request_id in {one.request.request_id for one in self._open.values()}:
            self.abort(request_id)

    def lose(self, replica: Replica, why: str) -> None:
        """Take a replica to be lost, found otherwise; its requests go elsewhere."""
        self._fleet.lose(replica, why)

    def stats(self) -> dict[str, float]:
        """Counters since the start: requests that were sent again; replicas lost and come back."""
        return self._fleet.counts | {"retries": float(self._retries)}

    def gauges(self) -> dict[str, float]:
        """How things stand: replicas that take requests, requests without one and open at each."""
        places = self._fleet.places
        return {
            "replicas_up": float(len(self._fleet.up)),
            "waiting": float(sum(one.place is None for one in list(self._open.values()))),
            **{f"open/{place.replica.name}": float(len(place.attempts)) for place in places},
        }

    @property
    def up(self) -> list[Replica]:
        """The replicas that take requests."""
        return [place.replica for place in self._fleet.up]

    # --- one request --------------------------------------------------------------------------

    async def _answer(self, one: _Open) -> Completion:
        for left in range(self._options.losses, -1, -1):
            rest = rest_of(one.request, one.seen.token_ids, one.left())
            if rest is None:
                return one.seen.completion("length")
            place = await self._find(one)
            if place is None:
                return one.seen.completion("abort")
            if (found := await self._attempt(place, one, rest)) is not None:
                one.seen.extend(found)
                return one.seen.completion(found.finish_reason)
            if left:
                self._retries += 1
        raise RolloutError(
            f"request '{one.request.request_id}' (group {one.request.group_id}) lost its replica "
            f"{self._options.losses + 1} times: it may be what kills them; the last time: {one.why}"
        )

    async def _attempt(self, place: Place, one: _Open, rest: Request) -> Completion | None:
        """One try on one replica; None where the replica was lost."""
        seen = Seen()
        task = asyncio.ensure_future(_started(place.replica, one, rest, seen))
        place.attempts.add(task)
        place.taken += 1
        one.place = place
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                return task.result()
        except ReplicaLost as error:
            one.why = str(error)
            self._fleet.lost(place, one.why)
        finally:
            one.place = None
            place.attempts.discard(task)
            task.cancel()
        one.seen.extend(seen)
        return None

    async def _find(self, one: _Open) -> Place | None:
        """Where a request goes; waits for a replica. None: it ended before."""
        until = one.loop.time() + self._options.wait_s
        while not one.over:
            if self._fleet.up:
                return self._choose(one.request, self._fleet.up)
            left = until - one.loop.time()
            if left <= 0 or self._fleet.gone_for_good:
                raise EngineError(self._none(left))
            due = one.left()
            await self._fleet.change(left if due is None else min(left, due))
        return None

    def _choose(self, request: Request, up: Sequence[Place]) -> Place:
        """That of its session, else of its group, else the one with fewest open requests."""
        keys: list[object] = []
        if request.session_id:
            keys.append(request.session_id)
        if request.group_id != -1:
            keys.append(request.group_id)
        known = (self._kept[key] for key in keys if key in self._kept)
        place = next((one for one in known if one.up), None)
        if place is None:
            place = min(up, key=lambda one: (len(one.attempts), one.taken))
        for key in keys:
            self._kept[key] = place
            self._kept.move_to_end(key)
        while len(self._kept) > _REMEMBERED:
            self._kept.popitem(last=False)
        return place

    def _none(self, left: float) -> str:
        limit = "" if left > 0 else f" within {self._options.waits}={self._options.wait_s:g} s"
        return f"no replica of '{self.name}' can serve{limit}: {self._fleet.reasons()}"


async def _started(replica: Replica, one: _Open, rest: Request, seen: Seen) -> Completion:
    """An abort that came before the replica knew the request ends it here."""
    if one.aborted:
        return seen.completion("abort")
    return await replica.generate(rest, seen)

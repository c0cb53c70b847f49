"""The replicas of a router: which of them take requests, found by checks and by what they lose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rlframe.requests import Completion
from rlframe_plugins.rollouts.replicas import Replica

__all__ = ["Fleet", "Place", "RouterOptions"]

_STRIKES = 2
"""Failed checks after which a replica that serves is taken to be lost."""


@dataclass(frozen=True)
class RouterOptions:
    """Limits of a router. ``waits`` names the option of ``wait_s``, for messages."""

    wait_s: float = 300.0
    """Longest wait for a replica that can serve, seconds."""
    check_s: float = 1.0
    """Between checks of a replica, seconds; a check that takes ten times as long has failed."""
    losses: int = 5
    """How often a request may lose its replica before it is taken to be the reason."""
    waits: str = "wait_s"


@dataclass(eq=False)
class Place:
    """A replica as the router sees it."""

    replica: Replica
    state: Literal["up", "doubted", "down"] = "up"
    why: str = ""
    strikes: int = 0
    taken: int = 0
    checking: bool = False
    again: bool = False
    """Whether a request was lost since the check began, which then says nothing."""
    attempts: set[asyncio.Task[Completion]] = field(default_factory=set)

    @property
    def up(self) -> bool:
        """Whether it takes requests."""
        return self.state == "up"


class Fleet:
    """See the module. ``busy`` says whether anybody waits, so that checks are worth their while."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        options: RouterOptions,
        tell: Callable[[str], None],
        busy: Callable[[], bool],
    ) -> None:
        assert replicas, "no replica"
        self.places = [Place(one) for one in replicas]
        for place in self.places:
            place.replica.on_back = partial(self._returned, place)
        self.counts = {"deaths": 0.0, "returns": 0.0}
        self._name, self._options, self._tell, self._busy = name, options, tell, busy
        self._waiters: set[asyncio.Future[None]] = set()
        self._guard: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[Place]:
        """The replicas that take requests."""
        return [place for place in self.places if place.up]

    @property
    def gone_for_good(self) -> bool:
        """Whether none can ever come back."""
        return all(place.replica.gone_for_good for place in self.places)

    def reasons(self) -> str:
        """Why each is not there."""
        return "; ".join(f"{p.replica.name}: {p.why or 'no reason'}" for p in self.places)

    def lose(self, replica: Replica, why: str) -> None:
        """A replica is lost, whatever a check finds; it is welcomed before it is used again."""
        place = next(one for one in self.places if one.replica is replica)
        self._down(place, why)

    def lost(self, place: Place, why: str) -> None:
        """A request was lost there: it takes no more until a check finds it well."""
        if place.up:
            place.state, place.why, place.again = "doubted", why, place.checking
            task = asyncio.ensure_future(self._check(place))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have one task of this loop that checks replicas while that is of use."""
        if self._guard is None or self._guard.done() or self._guard.get_loop() is not loop:
            self._guard = loop.create_task(self._check_all())

    async def _check_all(self) -> None:
        while self._busy() or any(not p.up and not p.replica.gone_for_good for p in self.places):
            await asyncio.sleep(self._options.check_s)
            await asyncio.gather(*(self._check(place) for place in self.places))

    async def _check(self, place: Place) -> None:
        if place.checking:
            return
        place.checking = True
        try:
            why = await self._asked(place)
            while place.again:
                place.again = False
                why = await self._asked(place)
            if not why:
                place.strikes = 0
                await self._back(place)
                return
            place.strikes += 1
            if not place.up or place.strikes >= _STRIKES:
                self._down(place, why)
        finally:
            place.checking = False

    async def _asked(self, place: Place) -> str:
        """Why a replica cannot serve, in its own words or ours."""
        limit, signs = 10 * self._options.check_s, place.replica.signs
        try:
            async with asyncio.timeout(limit):
                return await place.replica.check()
        except TimeoutError:
            if place.up and place.replica.signs != signs:
                return ""
            return f"it does not answer within {limit:g} s"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
            return str(error) or type(error).__name__

    def _down(self, place: Place, why: str) -> None:
        """It is lost, and with it what it had."""
        if place.state != "down":
            place.state, place.why = "down", place.why or why
            self.counts["deaths"] += 1
            self._tell(f"replica {place.replica.name} of '{self._name}' is lost: {place.why}")
        for task in place.attempts:
            task.cancel()
        self.changed()

    async def _back(self, place: Place) -> None:
        if place.up:
            return
        try:
            if place.state == "down":
                await place.replica.welcome()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
            place.why = str(error) or type(error).__name__
            return
        self._returned(place)

    def _returned(self, place: Place) -> None:
        if place.state == "down":
            self.counts["returns"] += 1
            self._tell(f"replica {place.replica.name} of '{self._name}' takes requests again")
        place.state, place.why, place.strikes = "up", "", 0
        self.changed()

    async def change(self, limit_s: float) -> None:
        """Wait until something about the replicas, or a request, has changed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(limit_s):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)

    def changed(self) -> None:
        """Wake who waits in :meth:`change`."""
        for waiter in list(self._waiters):
            # A loop that is closed has nobody who waits.
            with contextlib.suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""One server as a replica: a request is a stream of tokens, which ends when the client hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlframe.errors import RolloutError
from rlframe.requests import Completion, FinishReason, Request
from rlframe_plugins.rollouts.http.client import HttpClient, HttpOptions
from rlframe_plugins.rollouts.http.figures import Metrics, Shown
from rlframe_plugins.rollouts.replicas import Replica, ReplicaLost, Seen

__all__ = ["Part", "Server", "check_part", "finish_reason"]

_FIGURES_S = 5.0
"""A server that takes longer to show its figures shows none."""
_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


@dataclass(frozen=True)
class Part:
    """Tokens of a response that came together, equal lengths; ``finish`` ends it."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str | None = None


class Server(Replica):
    """Subclass with :meth:`parts`, and :meth:`check`. Used from one event loop.

    ``limit_s`` bounds everything but a generation, seconds; ``idle_s`` the silence within one.
    """

    exact: bool = True
    """Whether it counts tokens as the run does, and may so be held to its limit."""
    metrics: ClassVar[Metrics] = Metrics({}, {})
    """What is known of its ``/metrics``."""

    def __init__(self, url: str, options: HttpOptions, limit_s: float, idle_s: float) -> None:
        self.name = url
        self.client = HttpClient(url, options)
        self.limit_s, self.idle_s = limit_s, idle_s
        self._stops: dict[str, set[asyncio.Event]] = {}
        self.shown = Shown(self.metrics)
        """Its figures as they were last."""

    @abstractmethod
    def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """The response as it comes; the last part has ``finish``."""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A short call of the server."""
        return await self.client.ask(method, path, body, self.limit_s)

    async def look(self) -> None:
        """Read its figures. One that shows none, or is away, leaves the counters as they were."""
        if not (self.metrics.counters or self.metrics.gauges):
            return
        try:
            text = await self.client.ask("GET", "/metrics", limit_s=min(_FIGURES_S, self.limit_s))
        except RolloutError:
            self.shown.gauges = {}
            return
        self.shown.take(text if isinstance(text, str) else "")

    async def generate(self, request: Request, seen: Seen) -> Completion:
        """See :class:`Replica`; a deadline ends it here."""
        stop = asyncio.Event()
        stops = self._stops.setdefault(request.request_id, set())
        stops.add(stop)
        reading = asyncio.ensure_future(self._read(request, seen))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                {reading, stopping},
                timeout=request.deadline_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return seen.completion(reading.result() if reading.done() else "abort")
        finally:
            # Before anything is awaited: this may be cancelled a second time.
            stops.discard(stop)
            if not stops:
                self._stops.pop(request.request_id, None)
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    def abort(self, request_id: str) -> None:
        """See :class:`Replica`."""
        for stop in self._stops.get(request_id, ()):
            stop.set()

    def abort_all(self) -> None:
        """End every request with what it has."""
        for request_id in list(self._stops):
            self.abort(request_id)

    def close(self) -> None:
        """Close idle connections."""
        self.client.close()

    async def _understood(self, request: Request) -> AsyncGenerator[Part, None]:
        """:meth:`parts`, whose surprise at an answer is told as what it is."""
        try:
            async with contextlib.aclosing(self.parts(request)) as parts:
                async for part in parts:
                    yield part
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RolloutError(
                f"{self.name} sent what is no response: {type(error).__name__}: {error}"
            ) from error

    async def _read(self, request: Request, seen: Seen) -> FinishReason:
        async with contextlib.aclosing(self._understood(request)) as parts:
            async for part in parts:
                self.signs += 1
                left = request.sampling.max_new_tokens - len(seen.token_ids)
                check_part(self.name, part, left if self.exact else None)
                seen.add(part.token_ids, part.logprobs, part.versions)
                if part.finish is not None:
                    return finish_reason(self.name, part.finish)
        raise ReplicaLost(f"{self.name} ended a response without a reason")


def check_part(who: str, part: Part, left: int | None) -> None:
    """Raise RolloutError for tokens that are none, or more than ``left`` where that is a number."""
    wrong = [one for one in part.token_ids if type(one) is not int or one < 0]
    if wrong:
        raise RolloutError(f"{who} sent {wrong[0]!r} where a token id is due")
    if not all(type(one) in (int, float) and math.isfinite(one) for one in part.logprobs):
        raise RolloutError(f"{who} sent a log-probability that is no number")
    if not all(type(one) is int for one in part.versions):
        raise RolloutError(f"{who} sent a version of weights that is no number")
    if not len(part.token_ids) == len(part.logprobs) == len(part.versions):
        raise RolloutError(
            f"{who} sent {len(part.token_ids)} tokens, {len(part.logprobs)} log-probabilities and "
            f"{len(part.versions)} versions together"
        )
    if left is not None and len(part.token_ids) > left:
        raise RolloutError(f"{who} sent more tokens than it was asked for")


def finish_reason(who: str, said: str) -> FinishReason:
    """Ours for an engine's. Raises RolloutError."""
    if said not in _FINISH:
        raise RolloutError(f"{who} ended a response with the reason '{said}'")
    return _FINISH[said]

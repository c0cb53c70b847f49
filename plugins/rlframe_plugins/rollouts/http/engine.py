"""Rollout engines over servers: requests routed over URLs, all input and output on one thread."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rlframe.calling.loops import ThreadLoop
from rlframe.config import SamplingConfig, check_range
from rlframe.errors import ConfigError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.serving import check_request, load_config
from rlframe.weights.layout import Layout
from rlframe_plugins.rollouts.http.client import HttpOptions
from rlframe_plugins.rollouts.http.connection import Address
from rlframe_plugins.rollouts.http.server import Server
from rlframe_plugins.rollouts.replicas import ReplicaLost
from rlframe_plugins.rollouts.router import Router, RouterOptions

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HttpConfig", "HttpRollout"]

T = TypeVar("T")


@dataclass(frozen=True)
class HttpConfig(SamplingConfig):
    """Sampling, and where the servers are."""

    url: tuple[str, ...] = ()
    """Addresses of servers with the same model, as in [http://host:30000]; one at least."""
    token_env: str = ""
    """Name of the environment variable with the servers' token; empty sends none."""
    retries: int = 4
    """Further tries of a call that no byte of a reply came to, at least 0."""
    connect_s: float = 10.0
    """Longest wait for a connection, seconds, above 0."""
    limit_s: float = 120.0
    """Longest call other than a generation, seconds, above 0."""
    idle_s: float = 600.0
    """Longest silence of a server within a response, seconds, above 0."""
    check_s: float = 2.0
    """Between checks of a server that is used, seconds, above 0."""
    wait_s: float = 300.0
    """Longest wait for a server that can answer, seconds, above 0."""

    def __post_init__(self) -> None:
        """Check; raises ValueError."""
        super().__post_init__()
        check_range(self, "retries", 0)
        for name in ("connect_s", "limit_s", "idle_s", "check_s", "wait_s"):
            check_range(self, name, above=0)
        if not self.url:
            raise ValueError(
                "url must hold the address of a server: rollout.url=[http://host:port]"
            )
        for one in self.url:
            try:
                Address.parse(one)
            except ValueError as error:
                raise ValueError(f"url {error}") from error

    def options(self) -> HttpOptions:
        """For a client. Raises ConfigError where the token's variable is not set."""
        token = ""
        if self.token_env:
            token = os.environ.get(self.token_env, "").strip()
            if not token:
                raise ConfigError(
                    f"the environment variable {self.token_env}, which rollout.token_env names, is "
                    f"not set: export {self.token_env}=..."
                )
        return HttpOptions(connect_s=self.connect_s, retries=self.retries, token=token)


class HttpRollout(RolloutEngine):
    """See the module. Subclass with :meth:`server` and what the servers can do besides."""

    config: HttpConfig

    def __init__(self, config: HttpConfig, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        options = config.options()
        self._servers = [self.server(url, options) for url in config.url]
        self._router = Router(
            "rollout",
            self._servers,
            RouterOptions(config.wait_s, config.check_s, waits="rollout.wait_s"),
        )
        self._loop = ThreadLoop("rlframe-http-rollout")
        self._lock = threading.Lock()
        self._version, self._asleep, self._limits = -1, False, (0, 0)
        self._closed = False
        self._counters = {"requests": 0.0, "prompt_tokens": 0.0, "response_tokens": 0.0}
        self._open, self._since, self._busy_s = 0, 0.0, 0.0

    @abstractmethod
    def server(self, url: str, options: HttpOptions) -> Server:
        """One of the servers."""

    async def generate(self, request: Request) -> Completion:
        """See :class:`RolloutEngine`."""
        if self._closed:
            raise RolloutError("the rollout engine is closed")
        self._check(request)
        plain = self._within(request)
        with self._lock:
            self._busy(+1)
        try:
            future = self._loop.submit(self._router.generate(plain))
            found = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise RolloutError("the rollout engine was closed") from None
            raise
        finally:
            with self._lock:
                self._busy(-1)
        if self._limits[0] and max(found.token_ids, default=0) >= self._limits[0]:
            raise RolloutError(
                f"a server drew token id {max(found.token_ids)}, outside of the model's 0 to "
                f"{self._limits[0] - 1}: does it serve another model?"
            )
        with self._lock:
            self._counters["requests"] += 1
            self._counters["prompt_tokens"] += len(request.prompt_ids)
            self._counters["response_tokens"] += len(found.token_ids)
        return found

    def abort(self, request_id: str) -> None:
        """See :class:`RolloutEngine`."""
        if not self._closed:
            self._loop.submit(self._abort(request_id))

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Abort what is open; whether servers can stop and keep it, a subclass knows."""
        if mode == "abort":
            self.do(self._abort_all())

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on every rank."""
        return Layout.full(params.params, self.rank.world)

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Servers without a way for weights refuse them."""
        raise ConfigError(f"{type(self).__name__} takes no weights: it evaluates what a server has")

    @property
    def version(self) -> int:
        """See :class:`RolloutEngine`."""
        return self._version

    def stats(self) -> dict[str, float]:
        """Counters since the start, the servers' own among them, the router's under ``router/``."""
        with self._lock:
            running = time.perf_counter() - self._since if self._open else 0.0
            own = {**self._counters, "busy_s": self._busy_s + running}
        self._look()
        shown = _sums(server.shown.counters for server in self._servers)
        return own | shown | _routed(self._router.stats())

    def gauges(self) -> dict[str, float]:
        """What the servers show of themselves, of which the first of several workers speaks."""
        self._look()
        shown = _sums(server.shown.gauges for server in self._servers)
        return shown | _routed(self._router.gauges())

    def close(self) -> None:
        """End every request, and close the connections."""
        if self._closed:
            return
        self.do(self._abort_all())
        self.do(self._close())
        self._closed = True
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the loop of the connections, and wait for it. Raises RolloutError once closed."""
        if self._closed:
            work.close()
            raise RolloutError("the rollout engine is closed")
        return self._loop.run(work)

    async def tell_all(self, method: str, path: str, body: Any = None) -> None:
        """The same to every server; see :meth:`each`."""
        await self.each(lambda server: server.ask(method, path, body))

    async def each(self, what: Callable[[Any], Awaitable[Any]]) -> None:
        """Do something with every server at once.

        One that cannot be reached is lost, until it is welcomed again; where all are, or where one
        refuses, the first error is raised, when all have answered.
        """
        asked = (what(server) for server in self._servers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        failed = [(s, e) for s, e in zip(self._servers, found, strict=True) if _is_error(e)]
        refused = [error for _, error in failed if not isinstance(error, ReplicaLost)]
        if refused or len(failed) == len(self._servers):
            raise (refused or [error for _, error in failed])[0]
        for server, error in failed:
            self._router.lose(server, str(error))

    # --- inside -------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this worker is the one that commands the servers, which others ask too."""
        return self.rank.rank == 0

    def _look(self) -> None:
        if self.leads and not self._closed:
            self.do(self._looked())

    async def _looked(self) -> None:
        await asyncio.gather(*(server.look() for server in self._servers))

    def _check(self, request: Request) -> None:
        """Raise RolloutError for what cannot be served."""
        if self._asleep:
            raise RolloutError("the rollout engine is asleep: call wake() before generate()")
        if not self._limits[0]:
            config = load_config(self.spec)
            self._limits = int(config.vocab_size), int(config.max_position_embeddings)
        check_request(request, *self._limits)

    def _within(self, request: Request) -> Request:
        """The same in numbers that JSON has, and no longer than the model has positions."""
        sampling, prompt = request.sampling, tuple(map(int, request.prompt_ids))
        limit = sampling.max_new_tokens
        if self._limits[1]:
            limit = min(limit, self._limits[1] - len(prompt))
        least = min(sampling.min_new_tokens, limit)
        sampling = replace(sampling, max_new_tokens=limit, min_new_tokens=least)
        return replace(request, prompt_ids=prompt, sampling=sampling)

    def _busy(self, more: int) -> None:
        now = time.perf_counter()
        if self._open:
            self._busy_s += now - self._since
        self._open += more
        self._since = now

    async def _abort(self, request_id: str) -> None:
        self._router.abort(request_id)

    async def _abort_all(self) -> None:
        self._router.abort_all()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _routed(figures: Mapping[str, float]) -> dict[str, float]:
    return {f"router/{name}": value for name, value in figures.items()}


def _is_error(found: Any) -> bool:
    return isinstance(found, BaseException)

"""vLLM servers at addresses as a rollout engine; ``serve`` starts one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlframe import Request, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.serving import check_weights, end_ids, load_config, seed_of
from rlframe_plugins.rollouts.hosted.parcel import Parcel
from rlframe_plugins.rollouts.http.client import HttpOptions
from rlframe_plugins.rollouts.http.engine import HttpConfig, HttpRollout
from rlframe_plugins.rollouts.http.server import Part, Server
from rlframe_plugins.rollouts.vllm.gauges import METRICS, shared_counters
from rlframe_plugins.rollouts.vllm.translate import job_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["VLLMServers"]

_REAL = {"real": False}
"""Servers are asked to give no memory back: they are started without that."""


class VLLMServers(HttpRollout):
    """As ``vllm``, over servers that ``python -m rlframe_plugins.rollouts.vllm.serve`` started.

    Weights reach them through the memory of one machine, or a folder. A server that comes back gets
    the last ones, which are kept for it.
    """

    capabilities = frozenset({"seed", "stop-strings", "min-p", "pause", "in-flight", "sleep"})

    @dataclass(frozen=True)
    class Config(HttpConfig):
        """Where the servers are, and how weights reach them."""

        directory: str = ""
        """Folder for weights that servers see too (--weights-dir); empty: this machine's memory."""

    config: VLLMServers.Config
    _servers: list[VLLMServer]  # type: ignore[assignment]

    def __init__(self, config: VLLMServers.Config, spec: RolloutSpec) -> None:
        model = load_config(spec)
        self._positions = int(model.max_position_embeddings)
        self._ends = end_ids(spec, model)
        self._made = itertools.count()
        self._parcel: Parcel | None = None
        self._paused = False
        super().__init__(config, spec)

    def server(self, url: str, options: HttpOptions) -> VLLMServer:
        """See :class:`HttpRollout`."""
        return VLLMServer(self, url, options, self.config.limit_s, self.config.idle_s)

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Give every server these weights; all serve them, or RolloutError."""
        check_weights(version, tensors)
        before, self._parcel = self._parcel, Parcel(tensors, self.config.directory)
        if before is not None:
            before.close()
        try:
            self.do(self.tell_all("POST", "/rlframe/load", self.update(version)))
        except BaseException:
            self._version = -1
            raise
        self._version = version

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """See :class:`RolloutEngine`."""
        self._paused = True
        self.do(self.tell_all("POST", "/rlframe/pause", {"mode": "keep"}))
        super().pause(mode)

    def resume(self) -> None:
        """See :class:`RolloutEngine`."""
        self._paused = False
        self.do(self.tell_all("POST", "/rlframe/resume", {}))

    def sleep(self, level: int = 1) -> None:
        """End requests and take none; the servers' memory stays theirs."""
        self._asleep = True
        super().pause("abort")
        self.do(self.tell_all("POST", "/rlframe/sleep", {"level": level, **_REAL}))
        if level >= 2:
            self._version = -1

    def wake(self) -> None:
        """See :class:`RolloutEngine`."""
        self._asleep = False

    def close(self) -> None:
        """See :class:`HttpRollout`; the servers go on, with the last weights."""
        super().close()
        if self._parcel is not None:
            self._parcel.close()
            self._parcel = None

    def stats(self) -> dict[str, float]:
        """See :class:`HttpRollout`; with what vLLM counts, as the rollout ``vllm`` has it."""
        found = super().stats()
        return found | (shared_counters(found) if "prefix_queries" in found else {})

    def gauges(self) -> dict[str, float]:
        """See :class:`HttpRollout`."""
        found = super().gauges()
        share = found.pop("kv_use", None)
        if share is not None and "kv_total_tokens" in found:
            found["kv_used_tokens"] = share * found["kv_total_tokens"]
        return found

    def update(self, version: int) -> dict[str, Any]:
        """The body of ``/rlframe/load`` for what was loaded last."""
        assert self._parcel is not None, "load() comes first"
        return {"version": version, "path": self._parcel.path, "entries": self._parcel.entries}

    def body(self, request: Request) -> dict[str, Any]:
        """Of ``/rlframe/generate``. Raises RolloutError."""
        left = self._positions - len(request.prompt_ids)
        limit = min(request.sampling.max_new_tokens, left)
        seed = seed_of(request, self.spec.seed, next(self._made))
        return dataclasses.asdict(job_of(request, self._ends, limit, seed))

    async def bring_up(self, server: VLLMServer) -> None:
        """Give a server that was away what it missed."""
        if self._version >= 0 and await server.version() != self._version:
            await server.ask("POST", "/rlframe/load", self.update(self._version))
        if self._paused:
            await server.ask("POST", "/rlframe/pause", {"mode": "keep"})

    def _check(self, request: Request) -> None:
        if self._version < 0 and not self._asleep:
            raise RolloutError("the rollout engine has no weights yet: call load() first")
        super()._check(request)


class VLLMServer(Server):
    """One of them."""

    metrics = METRICS

    def __init__(
        self, home: VLLMServers, url: str, options: HttpOptions, limit_s: float, idle_s: float
    ) -> None:
        super().__init__(url, options, limit_s, idle_s)
        self._home = home

    async def version(self) -> int:
        """Of the weights that it serves; -1: none of a run."""
        found = await self.ask("POST", "/rlframe/stats", {})
        return int(found["version"]) if isinstance(found, Mapping) else -1

    async def check(self) -> str:
        """See :class:`Replica`: whether it answers."""
        await self.version()
        return ""

    async def welcome(self) -> None:
        """See :class:`Replica`: it may have been started again with other weights."""
        await self._home.bring_up(self)

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """See :class:`Server`."""
        body = self._home.body(request)
        events = self.client.events("/rlframe/generate", body, self.idle_s)
        async with contextlib.aclosing(events):
            async for event in events:
                yield self._part(event)

    def _part(self, event: Mapping[str, Any]) -> Part:
        try:
            ids, logprobs = list(event["token_ids"]), list(event["logprobs"])
            return Part(ids, logprobs, list(event["versions"]), event["finish"])
        except (KeyError, TypeError) as error:
            raise RolloutError(f"{self.name} sent an event without tokens: {event}") from error

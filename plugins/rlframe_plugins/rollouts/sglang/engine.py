"""SGLang servers as a rollout engine: generation, weights, pause and sleep through their API."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlframe.config import check_range
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe.serving import check_weights
from rlframe_plugins.rollouts.http.client import HttpOptions
from rlframe_plugins.rollouts.http.engine import HttpConfig, HttpRollout
from rlframe_plugins.rollouts.http.server import Part
from rlframe_plugins.rollouts.replicas import ReplicaLost
from rlframe_plugins.rollouts.sglang.broadcast import Broadcast
from rlframe_plugins.rollouts.sglang.protocol import SGLangServer
from rlframe_plugins.rollouts.sglang.weights import Whole, save_model

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SGLangRollout"]

_BACKENDS = ("nccl", "gloo")


class SGLangRollout(HttpRollout):
    """Tokens in, tokens out, with the log-probabilities of what was sampled.

    ``load`` stops requests between two tokens, so that they go on under the new weights with a
    cache that is computed anew. A request's seed counts where servers have
    ``--enable-deterministic-inference``.
    """

    capabilities = frozenset({"stop-strings", "min-p", "pause", "in-flight", "sleep"})

    @dataclass(frozen=True)
    class Config(HttpConfig):
        """Where the servers are, and how weights reach them."""

        weights: Literal["disk", "distributed"] = "disk"
        """By files in ``directory``; or by broadcast, without a copy on disk."""
        directory: str = ""
        """Folder for weights, seen by every server under the same path; empty: a temporary one."""
        backend: Literal["nccl", "gloo"] = "nccl"
        """What broadcasts: nccl between GPUs, gloo between hosts' memories."""
        address: str = ""
        """This machine's address as servers reach it, for broadcasts; empty: its name."""
        bucket_mib: int = 512
        """Most bytes of a call of a broadcast, MiB, at least 1."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            super().__post_init__()
            check_range(self, "bucket_mib", 1)
            for name, known in (("weights", ("disk", "distributed")), ("backend", _BACKENDS)):
                if getattr(self, name) not in known:
                    raise ValueError(f"{name} must be one of {', '.join(known)}")

    config: SGLangRollout.Config
    _servers: list[SGLangServer]  # type: ignore[assignment]

    def __init__(self, config: SGLangRollout.Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._folder: Path | None = None
        self._update: dict[str, Any] = {}
        """The body of the last update."""
        self._paused, self._whole = False, Whole()
        self._tags, self._away = list[str](), dict[str, set[str]]()
        """Kinds of memory that servers are to do without; and those that each one gave back."""
        size = config.bucket_mib * 2**20
        self._broadcast = Broadcast(config.address, config.backend, size, config.limit_s)
        self._sent: tuple[int, Mapping[str, Tensor]] | None = None
        """What is broadcast just now."""

    def server(self, url: str, options: HttpOptions) -> SGLangServer:
        """See :class:`HttpRollout`."""
        return _Trained(self, url, options, self.config.limit_s, self.config.idle_s)

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Give every server these weights; one that cannot be reached gets them when it is back.

        Of several workers with the same servers the first one does it.
        """
        check_weights(version, tensors)
        self._whole.check(tensors)
        self._tags = [tag for tag in self._tags if tag != "weights"]
        if self.leads and self.config.weights == "distributed":
            self._sent = version, tensors
            try:
                self.do(self.each(self._update_one))
            finally:
                self._sent = None
        elif self.leads:
            self._update = {
                "model_path": str(self._save(tensors)),
                "weight_version": str(version),
                "flush_cache": True,
                "abort_all_requests": False,
            }
            self.do(self.each(self._update_one))
        self._whole.came(tensors)
        self._version = version

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """See :class:`RolloutEngine`; what is kept goes back to the queue, without its cache."""
        super().pause(mode)
        self._paused = True
        self._lead("/pause_generation", {"mode": "retract"})

    def resume(self) -> None:
        """See :class:`RolloutEngine`."""
        self._paused = False
        self._lead("/continue_generation", {})

    def sleep(self, level: int = 1) -> None:
        """See :class:`RolloutEngine`; servers need ``--enable-memory-saver``.

        Requests end in their queues, where that takes effect at once: one that still ran without
        its memory would take its server with it.
        """
        self._asleep = True
        self._lead("/pause_generation", {"mode": "retract"})
        super().pause("abort")
        self._lead("/abort_request", {"abort_all": True})
        wanted = ["kv_cache"] if level == 1 else ["kv_cache", "weights"]
        self._tags += [tag for tag in wanted if tag not in self._tags]
        if self.leads:
            self.do(self.each(self._match))
        if not self._paused:
            self._lead("/continue_generation", {})
        if level >= 2:
            self._version = -1

    def wake(self) -> None:
        """See :class:`RolloutEngine`."""
        if self._tags:
            self._tags = []
            if self.leads:
                self.do(self.each(self._match))
        self._asleep = False

    def stats(self) -> dict[str, float]:
        """See :class:`HttpRollout`; prompt tokens that servers computed are ``prefill_tokens``."""
        found = super().stats()
        if "prefix_hit_tokens" in found:
            prompts = found.pop("prompt_tokens_there", 0.0)
            found["prefill_tokens"] = max(prompts - found["prefix_hit_tokens"], 0.0)
        return found

    def close(self) -> None:
        """See :class:`HttpRollout`; the servers go on."""
        super().close()
        if self._folder is not None and not self.config.directory:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- inside -------------------------------------------------------------------------------

    def _lead(self, path: str, body: Any = None) -> None:
        if self.leads:
            self.do(self.tell_all("POST", path, body))

    async def _match(self, server: SGLangServer) -> None:
        """Have a server give back the kinds of memory in ``_tags``, and take any other again.

        What was given back cannot be given back again, nor taken twice: either ends a server.
        """
        have = self._away.setdefault(server.name, set())
        if back := sorted(have - set(self._tags)):
            await server.ask("POST", "/resume_memory_occupation", {"tags": back})
            have -= set(back)
        if more := sorted(set(self._tags) - have):
            await server.ask("POST", "/flush_cache")
            await server.ask("POST", "/release_memory_occupation", {"tags": more})
            have |= set(more)

    def _check(self, request: Request) -> None:
        if self._version < 0 and not self._asleep:
            raise RolloutError("the rollout engine has no weights yet: call load() first")
        super()._check(request)

    def _save(self, tensors: Mapping[str, Tensor]) -> Path:
        if self._folder is None:
            given = self.config.directory
            self._folder = Path(given or tempfile.mkdtemp(prefix="rlframe-sglang-"))
        return save_model(self._folder, self.spec.path, tensors)

    async def _update_one(self, server: SGLangServer) -> None:
        await server.ask("POST", "/pause_generation", {"mode": "retract"})
        try:
            if "weights" in self._away.get(server.name, ()):
                await self._match(server)
            if self._sent is not None:
                await self._broadcast.send(server, *self._sent)
            else:
                await self._from_disk(server)
        finally:
            if not self._paused:
                await server.ask("POST", "/continue_generation", {})

    async def _from_disk(self, server: SGLangServer) -> None:
        path = "/update_weights_from_disk"
        answer = await server.ask("POST", path, self._update)
        if not isinstance(answer, Mapping) or not answer.get("success"):
            raise RolloutError(f"{server.name}{path} did not take the weights: {answer}")

    def lose(self, server: SGLangServer, why: str) -> None:
        """Use a server no more until it was brought up."""
        self._router.lose(server, why)

    async def bring_up(self, server: SGLangServer) -> None:
        """Give a server that was away what it missed. Raises ReplicaLost where nobody here can."""
        found = await server.version()
        if not found[:1].isdigit():  # it was started again, and has all its memory
            self._away.pop(server.name, None)
        if self._version >= 0 and found != str(self._version):
            if not self._update:
                raise ReplicaLost(
                    f"{server.name} serves weights '{found}', not {self._version}: it waits for "
                    "the next ones"
                )
            await self._update_one(server)
        await self._match(server)
        if self._paused:
            await server.ask("POST", "/pause_generation", {"mode": "retract"})


class _Trained(SGLangServer):
    """A server whose weights are the run's: no token of others is taken."""

    def __init__(
        self, home: SGLangRollout, url: str, options: HttpOptions, limit_s: float, idle_s: float
    ) -> None:
        super().__init__(url, options, limit_s, idle_s)
        self._home = home

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """See :class:`Server`."""
        async with contextlib.aclosing(super().parts(request)) as parts:
            async for part in parts:
                if -1 in part.versions:
                    why = f"{self.name} serves other weights than this run's: was it restarted?"
                    self._home.lose(self, why)
                    raise ReplicaLost(why)
                yield part

    async def welcome(self) -> None:
        """See :class:`Replica`: it may have been started again with other weights."""
        await self._home.bring_up(self)

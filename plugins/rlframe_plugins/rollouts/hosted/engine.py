"""A rollout engine in processes of its own: what does not depend on whose engine it is."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlframe import ConfigError, RolloutError
from rlframe.calling.protocol import Mesh
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.serving import check_request, check_version, check_weights, load_config
from rlframe.weights.layout import Layout
from rlframe_plugins.rollouts.hosted.config import HostedConfig, longest
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.hosted.link import Link
from rlframe_plugins.rollouts.hosted.parcel import Parcel
from rlframe_plugins.rollouts.torch.placing import generation_mesh

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HostedRollout"]


class HostedRollout(RolloutEngine):
    """The processes start with the first weights and end with the worker.

    With ``tensor_parallel`` the first rank of a replica holds the engine, which spreads the model
    itself; the others hold nothing.
    """

    config: HostedConfig
    servers: ClassVar[str]
    """The rollout that asks servers of this kind, for whoever has too few GPUs in a worker."""
    counters: ClassVar[tuple[str, ...]]
    """What :meth:`stats` counts in the engine, 0 before it starts."""
    figures: ClassVar[tuple[str, ...]]
    """The same of :meth:`gauges`."""

    def __init__(self, config: Any, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        model = load_config(spec)
        self._positions = int(model.max_position_embeddings)
        self._room = longest(spec, config.max_model_len, self._positions)
        self._vocab = int(model.vocab_size)
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._open: dict[int, Request] = {}
        self._version = -1
        self._asleep = self._paused = self._closed = False
        self._counters = {"requests": 0.0, "prompt_tokens": 0.0, "response_tokens": 0.0}

    @abstractmethod
    def linked(self, threads: int, *, gpu: bool) -> Link:
        """Start the process that holds the engine."""

    @abstractmethod
    def arguments(self, dtype: str) -> dict[str, Any]:
        """What the engine is started with; ``dtype`` is that of the first weights."""

    @abstractmethod
    def job(self, request: Request, limit: int) -> Job:
        """What it is asked for; ``limit`` bounds the response, tokens. Raises RolloutError."""

    @classmethod
    def mesh_of(cls, config: Any, world: int, trained: Mesh | None) -> Mesh:
        """See :class:`RolloutEngine`: replicas of ``tensor_parallel`` ranks."""
        return generation_mesh(config.tensor_parallel, world, trained)

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 without any."""
        return self._version

    # --- requests -----------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """See :class:`RolloutEngine`; on the first rank of a replica."""
        if self._closed:
            raise RolloutError("the rollout engine is closed")
        if self._asleep:
            raise RolloutError("the rollout engine is asleep: call wake() before generate()")
        if self._version < 0:
            raise RolloutError("the rollout engine has no weights yet: call load() first")
        check_request(request, self._vocab, self._room)
        left = self._room - len(request.prompt_ids)
        job = self.job(request, min(request.sampling.max_new_tokens, left))
        link = self._serving()
        number, answer = link.ask("generate", job)
        self._open[number] = request
        try:
            completion: Completion = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            link.abort(number)
            raise
        finally:
            del self._open[number]
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(request.prompt_ids)
        self._counters["response_tokens"] += len(completion.token_ids)
        return completion

    def abort(self, request_id: str) -> None:
        """End the requests of that id; an unknown one has ended before."""
        for number, request in list(self._open.items()):
            if request.request_id == request_id and self._link is not None:
                self._link.abort(number)

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Stop between two tokens; requests keep waiting, or end with what they have."""
        self._paused = True
        self.call("pause", mode)

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self.call("resume")

    # --- weights ------------------------------------------------------------------------------

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Give the engine a copy of every weight; the first start it, as do those after its death.

        Raises RolloutError.
        """
        check_version(version)
        if self._closed:
            raise RolloutError("the rollout engine is closed")
        if not self.leads:
            self._version = version
            return
        check_weights(version, tensors)
        with self._lock, Parcel(tensors) as parcel:
            if self._link is not None and self._link.gone:
                self._end()
            if self._link is None:
                self._start(str(next(iter(tensors.values())).dtype).removeprefix("torch."))
            try:
                self.call("load", version, parcel.path, parcel.entries)
            except BaseException:
                self._version = -1
                raise
            self._version = version

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on the first rank of each replica."""
        world = self.rank.world
        whole = Layout.full(params.params, world)
        if self.config.tensor_parallel == 1:
            return whole
        first = {members[0] for members in self._replicas}
        held = tuple(whole.ranks[rank] if rank in first else () for rank in range(world))
        return Layout(params.params, held)

    # --- sleep, figures, end ------------------------------------------------------------------

    def sleep(self, level: int = 1) -> None:
        """End requests; on a GPU give back the cache (1) and the weights (2) as well.

        After level 2 weights must be loaded again, also where none were given back.
        """
        self._asleep = True
        self.call("sleep", level, self.gives_back)
        if level >= 2:
            self._version = -1

    def wake(self) -> None:
        """The reverse of :meth:`sleep`."""
        self.call("wake", self.gives_back)
        self._asleep = False

    def stats(self) -> dict[str, float]:
        """Counters since the start, ``busy_s``, and :attr:`counters`."""
        found = self.call("stats") or dict.fromkeys(("busy_s", *self.counters), 0.0)
        return {**self._counters, **found}

    def gauges(self) -> dict[str, float]:
        """How things stand: :attr:`figures`."""
        return dict(self.call("gauges") or dict.fromkeys(self.figures, 0.0))

    def close(self) -> None:
        """End the engine's processes."""
        self._closed = True
        self._end()

    # --- for subclasses -----------------------------------------------------------------------

    @property
    def on_gpu(self) -> bool:
        """Whether the engine computes on GPUs."""
        return self.spec.device.startswith("cuda")

    @property
    def gives_back(self) -> bool:
        """Whether sleep gives memory back."""
        return self.config.sleep_mode and self.on_gpu

    @property
    def leads(self) -> bool:
        """Whether this rank is the first of its replica."""
        if self.config.tensor_parallel == 1:
            return True
        return any(members[0] == self.rank.rank for members in self._replicas)

    def call(self, verb: str, *arguments: Any) -> Any:
        """Ask the engine; None where there is none."""
        if self._link is None:
            return None
        return self._link.call(self.config.call_timeout_s, verb, *arguments)

    # --- inside -------------------------------------------------------------------------------

    @property
    def _replicas(self) -> tuple[tuple[int, ...], ...]:
        mesh = self.spec.mesh or self.mesh_of(self.config, self.rank.world, None)
        return replace(self.spec, mesh=mesh).replicas(self.rank.world)

    def _end(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            self._version = -1
            if link is not None:
                link.close()

    def _start(self, dtype: str) -> None:
        import torch

        if self.config.tensor_parallel > 1 and self.on_gpu:
            seen = torch.cuda.device_count()
            if seen < self.config.tensor_parallel:
                raise ConfigError(
                    f"rollout.tensor_parallel={self.config.tensor_parallel} needs as many GPUs in "
                    f"one worker, which sees {seen}: start a server and use --rollout "
                    f"{self.servers}"
                )
        arguments = self.arguments(dtype)
        link = self.linked(torch.get_num_threads(), gpu=self.on_gpu)
        try:
            link.call(self.config.start_timeout_s, "start", arguments)
        except BaseException:
            link.close()
            raise
        self._link = link
        if self._paused:
            self.call("pause", "keep")

    def _serving(self) -> Link:
        if self._link is None:
            raise RolloutError(
                f"rank {self.rank.rank} has no engine: the first rank of its replica takes requests"
            )
        return self._link

"""The rollout engine over vLLM."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rlframe import ConfigError, RolloutError
from rlframe.calling.protocol import Mesh
from rlframe.errors import SyncError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.serving import (
    check_request,
    check_version,
    end_ids,
    load_config,
    seed_of,
)
from rlframe.weights.layout import Layout
from rlframe_plugins.rollouts.torch.placing import generation_mesh
from rlframe_plugins.rollouts.vllm.config import VLLMConfig
from rlframe_plugins.rollouts.vllm.frames import Job
from rlframe_plugins.rollouts.vllm.gauges import COUNTERS, GAUGES, shared_counters
from rlframe_plugins.rollouts.vllm.link import Link
from rlframe_plugins.rollouts.vllm.parcel import Parcel, opened_parcel
from rlframe_plugins.rollouts.vllm.parts import assembled
from rlframe_plugins.rollouts.vllm.translate import engine_arguments, job_of, longest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["VLLMRollout"]

_COUNTERS = ("busy_s", *COUNTERS)
_GAUGES = ("freed_bytes", *GAUGES)


class VLLMRollout(RolloutEngine):
    """vLLM in processes of its own, which start with the first weights and end with the worker.

    Weights reach it through shared memory; every token carries the version that drew it. A ``load``
    while requests run stops them between two tokens; they go on with the keys that older weights
    computed, while new requests never find those. ``sleep`` ends what runs.

    With ``tensor_parallel`` the first rank of a replica holds the engine, which spreads the model
    itself; the others hold nothing. On a CPU ``sleep`` gives no memory back (``freed_bytes`` is 0).
    """

    capabilities = frozenset({"seed", "stop-strings", "min-p", "pause", "in-flight", "sleep"})

    Config = VLLMConfig

    config: VLLMConfig

    def __init__(self, config: VLLMConfig, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        model = load_config(spec)
        self._positions = int(model.max_position_embeddings)
        self._room = longest(spec, config.max_model_len, self._positions)
        self._vocab = int(model.vocab_size)
        self._tied = bool(model.tie_word_embeddings)
        self._ends = end_ids(spec, model)
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._open: dict[int, Request] = {}
        self._made = itertools.count()
        self._version = -1
        self._asleep = self._paused = False
        self._counters = {"requests": 0.0, "prompt_tokens": 0.0, "response_tokens": 0.0}

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
        if self._asleep:
            raise RolloutError("the rollout engine is asleep: call wake() before generate()")
        if self._version < 0:
            raise RolloutError("the rollout engine has no weights yet: call load() first")
        job = self._job(request)
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
        self._call("pause", mode)

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._call("resume")

    # --- weights ------------------------------------------------------------------------------

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Give vLLM a copy of every weight; the first ones start it, those after its death again.

        Raises RolloutError.
        """
        check_version(version)
        if not self._leads:
            self._version = version
            return
        with self._lock:
            if self._link is not None and self._link.gone:
                self.close()
            if self._link is None:
                self._start(str(next(iter(tensors.values())).dtype).removeprefix("torch."))
            try:
                with Parcel(tensors) as parcel:
                    self._call("load", version, parcel.path, parcel.entries)
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

    def weights(self) -> Mapping[str, Tensor]:
        """What vLLM's workers compute with, in Hugging Face's form.

        Out of the packed form that a CPU's matrix products read, too. Raises SyncError where a tied
        head differs from its embedding.
        """
        import torch

        if not self._leads:
            return {}
        shown = self._call("show") or []
        ranks = [opened_parcel(path, entries) for path, entries, _ in shown]
        try:
            found = assembled(ranks, [starts for *_, starts in shown])
        finally:
            self._call("hide")
        head = found.pop("lm_head.weight", None) if self._tied else None
        if head is not None and not torch.equal(head, found["model.embed_tokens.weight"]):
            raise SyncError(
                f"version {self._version}: vLLM's tied lm_head computes with other weights than "
                "its embedding: report it, with vLLM's version"
            )
        return found

    # --- sleep, figures, end ------------------------------------------------------------------

    def sleep(self, level: int = 1) -> None:
        """End requests; on a GPU give back the cache (1) and the weights (2) as well.

        After level 2 weights must be loaded again, also where none were given back.
        """
        self._asleep = True
        self._call("sleep", level, self._sleeps)
        if level >= 2:
            self._version = -1

    def wake(self) -> None:
        """The reverse of :meth:`sleep`."""
        self._call("wake", self._sleeps)
        self._asleep = False

    def stats(self) -> dict[str, float]:
        """Counters since the start, ``busy_s``, and vLLM's: see :data:`.gauges.COUNTERS`.

        ``prefix_hit_tokens`` and ``prefill_tokens`` are those that rlframe's own engine counts.
        """
        found = self._call("stats") or dict.fromkeys(_COUNTERS, 0.0)
        return {**self._counters, **found, **shared_counters(found)}

    def gauges(self) -> dict[str, float]:
        """See :data:`.gauges.GAUGES`; and ``freed_bytes``, what the last sleep gave back."""
        return dict(self._call("gauges") or dict.fromkeys(_GAUGES, 0.0))

    def close(self) -> None:
        """End vLLM's processes."""
        with self._lock:
            link, self._link = self._link, None
            self._version = -1
            if link is not None:
                link.close()

    # --- inside -------------------------------------------------------------------------------

    @property
    def _replicas(self) -> tuple[tuple[int, ...], ...]:
        from dataclasses import replace

        mesh = self.spec.mesh or self.mesh_of(self.config, self.rank.world, None)
        return replace(self.spec, mesh=mesh).replicas(self.rank.world)

    @property
    def _leads(self) -> bool:
        """Whether this rank is the first of its replica."""
        if self.config.tensor_parallel == 1:
            return True
        return any(members[0] == self.rank.rank for members in self._replicas)

    @property
    def _sleeps(self) -> bool:
        return self.config.sleep_mode and self.spec.device.startswith("cuda")

    def _start(self, dtype: str) -> None:
        import torch

        gpu = self.spec.device.startswith("cuda")
        if self.config.tensor_parallel > 1 and gpu:
            seen = torch.cuda.device_count()
            if seen < self.config.tensor_parallel:
                raise ConfigError(
                    f"rollout.tensor_parallel={self.config.tensor_parallel} needs as many GPUs in "
                    f"one worker, which sees {seen}: start a server and use --rollout vllm-server"
                )
        arguments = engine_arguments(self.config, self.spec, dtype, self._positions)
        link = Link(torch.get_num_threads(), gpu=gpu)
        try:
            link.call(self.config.start_timeout_s, "start", arguments)
        except BaseException:
            link.close()
            raise
        self._link = link
        if self._paused:
            self._call("pause", "keep")

    def _serving(self) -> Link:
        if self._link is None:
            raise RolloutError(
                f"rank {self.rank.rank} has no engine: the first rank of its replica takes requests"
            )
        return self._link

    def _call(self, verb: str, *arguments: Any) -> Any:
        """Ask the engine; None where there is none."""
        if self._link is None:
            return None
        return self._link.call(self.config.call_timeout_s, verb, *arguments)

    def _job(self, request: Request) -> Job:
        check_request(request, self._vocab, self._room)
        limit = min(request.sampling.max_new_tokens, self._room - len(request.prompt_ids))
        seed = request.sampling.seed
        if self.config.seeded:
            seed = seed_of(request, self.spec.seed, next(self._made))
        return job_of(request, self._ends, limit, seed)

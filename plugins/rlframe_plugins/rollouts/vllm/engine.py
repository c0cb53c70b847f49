"""The rollout engine over vLLM."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlframe.errors import SyncError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe.serving import end_ids, load_config, seed_of
from rlframe_plugins.rollouts.hosted.engine import HostedRollout
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.hosted.link import Link
from rlframe_plugins.rollouts.hosted.parcel import opened_parcel
from rlframe_plugins.rollouts.vllm.config import VLLMConfig
from rlframe_plugins.rollouts.vllm.gauges import COUNTERS, GAUGES, shared_counters
from rlframe_plugins.rollouts.vllm.parts import assembled
from rlframe_plugins.rollouts.vllm.processes import linked
from rlframe_plugins.rollouts.vllm.translate import engine_arguments, job_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["VLLMRollout"]


class VLLMRollout(HostedRollout):
    """vLLM in processes of its own, which start with the first weights and end with the worker.

    Weights reach it through shared memory; every token carries the version that drew it. A ``load``
    while requests run stops them between two tokens; they go on with the keys that older weights
    computed, while new requests never find those. ``sleep`` ends what runs.

    With ``tensor_parallel`` the first rank of a replica holds the engine, which spreads the model
    itself; the others hold nothing. On a CPU ``sleep`` gives no memory back (``freed_bytes`` is 0).
    """

    capabilities = frozenset({"seed", "stop-strings", "min-p", "pause", "in-flight", "sleep"})
    servers, counters, figures = "vllm-server", COUNTERS, ("freed_bytes", *GAUGES)

    Config = VLLMConfig

    config: VLLMConfig

    def __init__(self, config: VLLMConfig, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        model = load_config(spec)
        self._tied = bool(model.tie_word_embeddings)
        self._ends = end_ids(spec, model)
        self._made = itertools.count()

    def linked(self, threads: int, *, gpu: bool) -> Link:
        """See :class:`HostedRollout`."""
        return linked(threads, gpu=gpu)

    def arguments(self, dtype: str) -> dict[str, Any]:
        """See :class:`HostedRollout`."""
        return engine_arguments(self.config, self.spec, dtype, self._positions)

    def job(self, request: Request, limit: int) -> Job:
        """See :class:`HostedRollout`."""
        seed = request.sampling.seed
        if self.config.seeded:
            seed = seed_of(request, self.spec.seed, next(self._made))
        return job_of(request, self._ends, limit, seed)

    def weights(self) -> Mapping[str, Tensor]:
        """What vLLM's workers compute with, in Hugging Face's form.

        Out of the packed form that a CPU's matrix products read, too. Raises SyncError where a tied
        head differs from its embedding.
        """
        import torch

        if not self.leads:
            return {}
        shown = self.call("show") or []
        ranks = [opened_parcel(path, entries) for path, entries, _ in shown]
        try:
            found = assembled(ranks, [starts for *_, starts in shown])
        finally:
            self.call("hide")
        head = found.pop("lm_head.weight", None) if self._tied else None
        if head is not None and not torch.equal(head, found["model.embed_tokens.weight"]):
            raise SyncError(
                f"version {self._version}: vLLM's tied lm_head computes with other weights than "
                "its embedding: report it, with vLLM's version"
            )
        return found

    def stats(self) -> dict[str, float]:
        """Counters since the start, ``busy_s``, and vLLM's: see :data:`.gauges.COUNTERS`.

        ``prefix_hit_tokens`` and ``prefill_tokens`` are those that rlframe's own engine counts.
        """
        found = super().stats()
        return found | shared_counters(found)

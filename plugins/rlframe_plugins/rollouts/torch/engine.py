"""The embedded rollout engine: shares the trainer's tensors, needs no server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlframe.calling.protocol import Mesh
from rlframe.config import SamplingConfig, check_range
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request
from rlframe.serving import (
    StopStrings,
    check_request,
    check_weights,
    end_ids,
    load_config,
    load_tokenizer,
    seed_of,
)
from rlframe.weights.layout import Layout
from rlframe_plugins.rollouts.front import SteppedRollout
from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.lockstep import Follower, LeadingCache, LeadingDecoder
from rlframe_plugins.rollouts.torch.placing import generation_mesh, sharded_layout
from rlframe_plugins.rollouts.torch.rows import Running
from rlframe_plugins.rollouts.torch.runner import TorchRunner
from rlframe_plugins.rollouts.torch.team import Team
from rlframe_plugins.rollouts.torch.weights import Weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["TorchRollout"]


class TorchRollout(SteppedRollout):
    """Continuous batching of whatever comes, over a cache in blocks.

    Texts that begin alike share the blocks of their beginning: the samples of a prompt, which is
    prefilled once for them, prompts with one preamble, the turns of a session. Where the cache is
    full, blocks that nobody uses give way, then the sequences that entered last, which are
    prefilled again. Blocks of older weights are given to nobody.

    A response also ends, with ``finish_reason='length'``, at the model's last position. After a
    ``load`` in flight, running sequences keep the keys that older weights computed; each token
    carries the version that drew it.

    With ``tensor_parallel`` the ranks of a replica step together: the first of them takes requests
    and draws tokens, and a rank that fails or dies breaks the replica with an error that names it.
    """

    capabilities = frozenset(
        {"seed", "stop-strings", "min-p", "batch-invariant", "pause", "in-flight", "sleep"}
    )

    @dataclass(frozen=True)
    class Config(SamplingConfig):
        """Sampling, and bounds on what runs at once."""

        max_batch: int = 256
        """Sequences that run at once, at least 1."""
        max_kv_tokens: int = 131072
        """Most tokens of key-value cache, at least 32; blocks of 32 are taken as needed."""
        host_kv_tokens: int = 0
        """Tokens of cache that host memory takes from a full cache or one asleep, at least 0."""
        tensor_parallel: int = 1
        """Ranks that hold a replica together, at least 1: heads, features, words are dealt out."""
        step_timeout_s: float = 300.0
        """Longest wait of a replica's ranks for each other within a step, seconds, above 0."""
        batch_invariant: bool = False
        """Test mode: every sequence runs alone, so its bits don't depend on what else runs."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "max_batch", 1)
            check_range(self, "max_kv_tokens", BLOCK_TOKENS)
            check_range(self, "host_kv_tokens", 0)
            check_range(self, "tensor_parallel", 1)
            check_range(self, "step_timeout_s", above=0)

    config: TorchRollout.Config
    runner: TorchRunner

    def __init__(self, config: TorchRollout.Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        model = load_config(spec)
        self._arch = Arch.read(model)
        if spec.max_prompt_tokens and spec.max_new_tokens:
            self._arch.check_length(spec.max_prompt_tokens + spec.max_new_tokens)
        self._ends = end_ids(spec, model)
        self._model = model
        self._vocab = int(model.vocab_size)
        self._team: Team | None = None
        self._follower: Follower | None = None
        self._decoder = Decoder(model, self._arch)
        self.runner = self._runner(self._decoder, KVCache(*self._arch.cache_shape))
        self._tokenizer: Any = None
        self._made = 0

    @classmethod
    def mesh_of(cls, config: Any, world: int, trained: Mesh | None) -> Mesh:
        """See :class:`RolloutEngine`: replicas of ``tensor_parallel`` ranks."""
        return generation_mesh(config.tensor_parallel, world, trained)

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 without any."""
        return self.runner.version if self._follower is None else self._follower.version

    async def generate(self, request: Request) -> Completion:
        """See :class:`RolloutEngine`; on the first rank of a replica."""
        if self._follower is not None and self._team is not None:
            raise RolloutError(
                f"rank {self.rank.rank} follows rank {self._team.members[0]}, which takes requests"
            )
        return await super().generate(request)

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Look at these tensors from now on; in-place changes need only a new version."""
        check_weights(version, tensors)
        with self._lock:
            if self.config.tensor_parallel > 1 and self._team is None:
                self._join(next(iter(tensors.values())).device)
            weights = Weights.view(self._decoder.arch, tensors)
            if self._follower is not None:
                self._follower.load(version, weights)
                return
            self._decoder.use(weights, version)
            if self._team is None:
                self._vocab = weights.head.shape[0]
            self.runner.version = version

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on every rank, or the shards of tensor-parallel replicas."""
        if self.config.tensor_parallel == 1:
            return Layout.full(params.params, self.rank.world)
        return sharded_layout(params, self.spec.path, self._mesh, self.spec.grouping)

    def weights(self) -> Mapping[str, Tensor]:
        """See :class:`RolloutEngine`."""
        if self._follower is not None:
            self._follower.settle()
        return self._decoder.weights.named(self._decoder.arch)

    def sleep(self, level: int = 1) -> None:
        """Release the cache (1) and the weights (2), which must then be loaded again.

        Requests that run wait, and are prefilled again after :meth:`wake`.
        """
        if self._follower is not None:
            return  # the leader tells
        with self._lock:
            super().sleep(level)
            self.runner.release(keep=level < 2)
            if level >= 2:
                self._decoder.use(None)
                self.runner.version = -1

    def stats(self) -> dict[str, float]:
        """Also the seconds of ``busy_s`` spent in prefill, decode and sampling, and more.

        ``prefill_tokens`` were computed, ``prefix_hit_tokens`` taken over from the cache;
        ``running_s`` and ``waiting_s`` are sequences times the seconds of steps.
        """
        return {**super().stats(), **self.runner.counters}

    def gauges(self) -> dict[str, float]:
        """Sequences that run and wait; tokens of the cache: in use, kept, on the host, at most."""
        return self.runner.gauges if self._follower is None else {}

    def close(self) -> None:
        """End every request and give the memory back; the replica's ranks part."""
        if self._follower is not None:
            self._follower.close()
        elif self._team is None:
            super().close()
        else:
            with suppress(RolloutError):  # a broken replica has ended already
                super().close()
                self._team.tell("end")
            self._team.close()

    @property
    def _mesh(self) -> Mesh:
        return self.spec.mesh or self.mesh_of(self.config, self.rank.world, None)

    def _join(self, device: torch.device) -> None:
        """Meet the other ranks of the replica, once; from then on this one leads or follows."""
        spec, config = replace(self.spec, mesh=self._mesh), self.config
        members = next(m for m in spec.replicas(self.rank.world) if self.rank.rank in m)
        shard = self._arch.shard(len(members))
        team = Team(members, self.rank, device, config.step_timeout_s)
        if team.index == 0:
            self._decoder = LeadingDecoder(self._model, shard, self._vocab, team)
            self.runner = self._runner(self._decoder, LeadingCache(team, *shard.cache_shape))
        else:
            self._decoder = Decoder(self._model, shard, self._vocab, team)
            cache = KVCache(*shard.cache_shape)
            self._follower = Follower(team, self._decoder, cache, config.step_timeout_s)
        self._team = team

    def _runner(self, decoder: Decoder, cache: KVCache) -> TorchRunner:
        config = self.config
        sizes = (config.max_kv_tokens, config.host_kv_tokens)
        pool = BlockPool(*(size // BLOCK_TOKENS for size in sizes))
        return TorchRunner(decoder, cache, pool, config.max_batch, config.batch_invariant)

    def _handle(self, request: Request) -> Running:
        check_request(request, self._vocab, self._arch.max_positions, self._ends)
        prompt, sampling = len(request.prompt_ids), request.sampling
        limit = min(sampling.max_new_tokens, self._arch.max_positions - prompt)
        self._arch.check_length(prompt + limit)
        if blocks_for(prompt + limit) > self.config.max_kv_tokens // BLOCK_TOKENS:
            raise RolloutError(
                f"a prompt of {prompt} and a response of {limit} tokens exceed "
                f"rollout.max_kv_tokens={self.config.max_kv_tokens} (in blocks of {BLOCK_TOKENS}): "
                "raise it"
            )
        strings = None
        if sampling.stop:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self.spec)
            strings = StopStrings(self._tokenizer, sampling.stop)
        seed = seed_of(request, self.spec.seed, self._made)
        self._made += 1
        stops = tuple(sorted({*self._ends, *sampling.stop_token_ids}))
        return Running(request, seed, stops, strings, limit)

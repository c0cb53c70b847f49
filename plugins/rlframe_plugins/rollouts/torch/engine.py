"""The embedded rollout engine: shares the trainer's tensors, needs no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.config import SamplingConfig, check_range
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.layout import Layout
from rlframe.requests import Request
from rlframe_plugins.rollouts.common import (
    StopStrings,
    check_request,
    end_ids,
    load_config,
    load_tokenizer,
    seed_of,
)
from rlframe_plugins.rollouts.front import SteppedRollout
from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.rows import Running
from rlframe_plugins.rollouts.torch.runner import TorchRunner
from rlframe_plugins.rollouts.torch.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchRollout"]


class TorchRollout(SteppedRollout):
    """Continuous batching over a static cache; a prompt is prefilled once for its samples.

    A response also ends, with ``finish_reason='length'``, at the model's last position. After a
    ``load`` in flight, running sequences keep the keys that older weights computed; each token
    carries the version that drew it.
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
        """Tokens of key-value cache, at least 1: sequences times the longest of them."""
        batch_invariant: bool = False
        """Test mode: every sequence runs alone, so its bits don't depend on what else runs."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "max_batch", 1)
            check_range(self, "max_kv_tokens", 1)

    config: TorchRollout.Config
    runner: TorchRunner

    def __init__(self, config: TorchRollout.Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        model = load_config(spec)
        self._arch = Arch.read(model)
        if spec.max_prompt_tokens and spec.max_new_tokens:
            self._arch.check_length(spec.max_prompt_tokens + spec.max_new_tokens)
        self._ends = end_ids(spec, model)
        self._decoder = Decoder(model, self._arch)
        self.runner = TorchRunner(
            self._decoder, config.max_batch, config.max_kv_tokens, config.batch_invariant
        )
        self._tokenizer: Any = None
        self._made = 0
        self._vocab = int(model.vocab_size)

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 without any."""
        return self.runner.version

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Look at these tensors from now on; in-place changes need only a new version."""
        with self._lock:
            weights = Weights.view(self._arch, tensors)
            self._decoder.use(weights)
            self._vocab = weights.head.shape[0]
            self.runner.version = version

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on every rank."""
        return Layout.full(params.params, self.rank.world)

    def sleep(self, level: int = 1) -> None:
        """Release the cache (1) and the weights (2), which must then be loaded again.

        Requests that run wait, and are prefilled again after :meth:`wake`.
        """
        with self._lock:
            super().sleep(level)
            self.runner.release()
            if level >= 2:
                self._decoder.use(None)
                self.runner.version = -1

    def stats(self) -> dict[str, float]:
        """Also the seconds of ``busy_s`` spent in prefill, decode and sampling."""
        return {**super().stats(), **self.runner.seconds}

    def _handle(self, request: Request) -> Running:
        check_request(request, self._vocab, self._arch.max_positions)
        prompt, sampling = len(request.prompt_ids), request.sampling
        limit = min(sampling.max_new_tokens, self._arch.max_positions - prompt)
        self._arch.check_length(prompt + limit)
        if prompt + limit > self.config.max_kv_tokens:
            raise RolloutError(
                f"a prompt of {prompt} and a response of {limit} tokens exceed "
                f"rollout.max_kv_tokens={self.config.max_kv_tokens}: raise it"
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

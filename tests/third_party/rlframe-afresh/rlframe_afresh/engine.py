"""A rollout engine on one screen: no cache, no batch, any causal model of transformers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe import Completion, Request, RolloutError, Sampling
from rlframe.config import SamplingConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import FinishReason
from rlframe.serving import (
    StopStrings,
    check_request,
    check_version,
    end_ids,
    load_config,
    load_tokenizer,
    seed_of,
)
from rlframe.weights.layout import Layout

if TYPE_CHECKING:
    from torch import Generator, Tensor

__all__ = ["Afresh", "distribution"]


class Afresh(RolloutEngine):
    """Every request is a coroutine of its own, which gives way to the others after each token."""

    capabilities = frozenset({"seed", "stop-strings", "min-p", "in-flight"})

    @dataclass(frozen=True)
    class Config(SamplingConfig):
        """Sampling, nothing else."""

    def __init__(self, config: Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._model_config = load_config(spec)
        self._ends = end_ids(spec, self._model_config)
        self._model: Any = None
        self._tensors: dict[str, Tensor] = {}
        self._version = -1
        self._open: set[str] = set()
        self._aborted: set[str] = set()
        self._stats = dict.fromkeys(("requests", "prompt_tokens", "response_tokens", "busy_s"), 0.0)

    # --- weights ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """What samples now; -1 before the first load."""
        return self._version

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the trainer's own tensors: the module is called with them."""
        from transformers import AutoModelForCausalLM

        check_version(version)
        if self._model is None:
            self._model = AutoModelForCausalLM.from_config(self._model_config).eval()
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._version = version

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on every rank."""
        return Layout.full(params.params, self.rank.world)

    def weights(self) -> Mapping[str, Tensor]:
        """See :class:`RolloutEngine`."""
        return self._tensors

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """Token by token, until it ends."""
        import torch

        positions = int(self._model_config.max_position_embeddings)
        check_request(request, int(self._model_config.vocab_size), positions, self._ends)
        if self._version < 0:
            raise RolloutError("rollout 'afresh' has no weights yet: load comes first")
        seed = seed_of(request, self.spec.seed, int(self._stats["requests"])) % 2**63
        drawing = torch.Generator().manual_seed(seed)
        self._stats["requests"] += 1
        self._stats["prompt_tokens"] += len(request.prompt_ids)
        began, name = time.monotonic(), request.request_id
        deadline = began + request.deadline_s if request.deadline_s is not None else float("inf")
        ends = self._ended_by(request.sampling, positions - len(request.prompt_ids))
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        reason: FinishReason | None = None
        self._open.add(name)
        try:
            while reason is None:
                await asyncio.sleep(0)
                if name in self._aborted or time.monotonic() > deadline:
                    reason = "abort"
                    break
                token, logprob = self._next(request, ids, drawing)
                ids.append(token)
                logprobs.append(logprob)
                versions.append(self._version)
                reason = ends(ids)
        finally:
            self._open.discard(name)
            self._aborted.discard(name)
            self._stats["response_tokens"] += len(ids)
        return Completion(tuple(ids), tuple(logprobs), tuple(versions), reason)

    def abort(self, request_id: str) -> None:
        """It ends before its next token."""
        if request_id in self._open:
            self._aborted.add(request_id)

    def stats(self) -> dict[str, float]:
        """Counters since the start."""
        return dict(self._stats)

    # --- inside -------------------------------------------------------------------------------

    def _next(self, request: Request, ids: list[int], drawing: Generator) -> tuple[int, float]:
        import torch

        began, sampling = time.perf_counter(), request.sampling
        with torch.no_grad():
            text = torch.tensor([[*request.prompt_ids, *ids]])
            out = torch.func.functional_call(self._model, self._tensors, (text,))
            logits = out.logits[0, -1].float()
            if len(ids) < sampling.min_new_tokens:
                logits[[*self._ends, *sampling.stop_token_ids]] = -torch.inf
            logprobs = distribution(logits, sampling)
            if sampling.temperature == 0:
                token = int(logprobs.argmax())
            else:
                token = int(torch.multinomial(logprobs.exp(), 1, generator=drawing))
        self._stats["busy_s"] += time.perf_counter() - began
        return token, float(logprobs[token])

    def _ended_by(self, sampling: Sampling, room: int) -> Any:
        """A function of the tokens so far: why they are at their end, or None."""
        stops = {*self._ends, *sampling.stop_token_ids}
        limit = min(sampling.max_new_tokens, room)
        strings = StopStrings(load_tokenizer(self.spec), sampling.stop) if sampling.stop else None

        def ended(ids: list[int]) -> FinishReason | None:
            told = strings is not None and len(ids) >= sampling.min_new_tokens
            if ids[-1] in stops or (told and strings.completed_by_last(ids)):  # type: ignore[union-attr]
                return "stop"
            return "length" if len(ids) >= limit else None

        return ended


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (V,) of what is drawn from: temperature, then top-k, top-p, min-p."""
    import torch

    if sampling.temperature == 0:
        return logits.log_softmax(0)
    logits = logits / sampling.temperature
    if sampling.top_k:
        logits[logits.argsort(descending=True)[sampling.top_k :]] = -torch.inf
    if sampling.top_p < 1:
        mass, order = logits.softmax(0).sort(descending=True)
        logits[order[mass.cumsum(0) - mass >= sampling.top_p]] = -torch.inf
    if sampling.min_p:
        share = logits.softmax(0)
        logits[share < sampling.min_p * share.max()] = -torch.inf
    return logits.log_softmax(0)

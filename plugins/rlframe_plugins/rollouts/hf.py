"""Transformers' ``generate``: any causal model, slow, the plain reference for other engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.config import SamplingConfig, check_range
from rlframe.errors import ModelError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, FinishReason, Request, Sampling
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

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HFRollout"]


@dataclass(eq=False)
class Job:
    """A request and what ``generate`` needs to know of it."""

    request: Request
    sampling: Sampling
    """The request's, its limit cut to the model's positions and without its seed."""
    seed: int
    stop_ids: tuple[int, ...]
    strings: StopStrings | None


class HFRollout(SteppedRollout):
    """Waiting requests of equal sampling are one call of ``generate``, which nothing interrupts.

    Random numbers come from torch's global generator, restored afterwards, so a response depends
    on what else is in its call; ``Sampling.seed`` has an effect but no promise.
    """

    capabilities = frozenset({"stop-strings", "min-p", "pause", "sleep"})

    @dataclass(frozen=True)
    class Config(SamplingConfig):
        """Sampling, and a bound on what runs at once."""

        max_batch: int = 64
        """Sequences of one call of generate, at least 1."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "max_batch", 1)

    config: HFRollout.Config
    runner: HFRunner

    def __init__(self, config: HFRollout.Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._model_config = load_config(spec)
        self._ends = end_ids(spec, self._model_config)
        self.runner = HFRunner(config.max_batch)
        self._tokenizer: Any = None
        self._made = 0
        self._version = -1

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 without any."""
        return self._version

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Make these tensors the module's parameters, without a copy."""
        check_weights(version, tensors)
        with self._lock:
            if self.runner.model is None:
                self.runner.model = _build(self._model_config, self.spec, tensors)
            _assign(self.runner.model, tensors)
            self._version = self.runner.version = version

    def layout(self, params: Layout) -> Layout:
        """Every parameter whole on every rank."""
        return Layout.full(params.params, self.rank.world)

    def weights(self) -> Mapping[str, Tensor]:
        """See :class:`RolloutEngine`."""
        return {name: p.detach() for name, p in self.runner.model.named_parameters()}

    def sleep(self, level: int = 1) -> None:
        """Nothing is kept between calls (1); the weights go too (2)."""
        with self._lock:
            super().sleep(level)
            if level >= 2:
                self.runner.model = None
                self._version = -1

    def _handle(self, request: Request) -> Job:
        positions = int(self._model_config.max_position_embeddings)
        check_request(request, int(self._model_config.vocab_size), positions, self._ends)
        sampling = request.sampling
        limit = min(sampling.max_new_tokens, positions - len(request.prompt_ids))
        strings = None
        if sampling.stop:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self.spec)
            strings = StopStrings(self._tokenizer, sampling.stop)
        seed = seed_of(request, self.spec.seed, self._made)
        self._made += 1
        stops = tuple(sorted({*self._ends, *sampling.stop_token_ids}))
        same = dataclasses.replace(sampling, seed=None, max_new_tokens=limit)
        return Job(request, same, seed, stops, strings)


class HFRunner:
    """Jobs that wait; a step runs as many of equal sampling as one call takes."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._waiting: list[Job] = []
        self.model: Any = None
        self.version = -1

    @property
    def has_work(self) -> bool:
        """Whether a job waits."""
        return bool(self._waiting)

    def add(self, handle: Job) -> None:
        """Queue a job."""
        self._waiting.append(handle)

    def drop(self, handle: Job) -> Completion:
        """Forget a job, which has drawn nothing yet."""
        if handle in self._waiting:
            self._waiting.remove(handle)
        return Completion((), (), (), "abort")

    def reset(self) -> None:
        """Forget all jobs."""
        self._waiting.clear()

    def step(self) -> list[tuple[Job, Completion]]:
        """One call of ``generate`` for the oldest job and those like it."""
        first = self._waiting[0]
        jobs = [j for j in self._waiting if j.sampling == first.sampling][: self._max_batch]
        token_ids, logprobs = _generate(self.model, jobs)
        self._waiting = [j for j in self._waiting if j not in jobs]
        return [
            (job, _cut(job, ids, lps, self.version))
            for job, ids, lps in zip(jobs, token_ids, logprobs, strict=True)
        ]


def _build(config: Any, spec: RolloutSpec, tensors: Mapping[str, Tensor]) -> Any:
    """The module on the tensors' device and in their dtype; its random weights are replaced.

    It is not built on the meta device, because buffers (rotary frequencies) need their values.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    like = next(iter(tensors.values()))
    attn = {} if spec.model.attn == "auto" else {"attn_implementation": spec.model.attn}
    with torch.random.fork_rng(devices=[]), like.device:
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=like.dtype, **attn)
        except ValueError as error:
            raise ModelError(f"rollout 'hf' cannot build '{spec.path}': {error}") from error
    model.generation_config = GenerationConfig()
    return model.eval()


def _assign(model: Any, tensors: Mapping[str, Tensor]) -> None:
    shared = {name: tensor.detach() for name, tensor in tensors.items()}
    try:
        result = model.load_state_dict(shared, strict=False, assign=True)
    except RuntimeError as error:
        raise ModelError(f"rollout 'hf': weights do not fit the model: {error}") from error
    model.tie_weights()
    addresses = {t.data_ptr() for t in shared.values()}
    missing = [n for n, p in model.named_parameters() if p.data_ptr() not in addresses]
    if missing or result.unexpected_keys:
        raise ModelError(
            f"rollout 'hf': weights do not fit the model: missing {missing[:3]}, "
            f"unknown {result.unexpected_keys[:3]}"
        )


def _generate(model: Any, jobs: list[Job]) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and log-probabilities of each job, as many as the longest has."""
    import torch
    from transformers import StoppingCriteriaList

    prompts = [job.request.prompt_ids for job in jobs]
    width = max(len(p) for p in prompts)
    ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([(0,) * (width - len(p)) + (1,) * len(p) for p in prompts])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(jobs[0].seed % 2**63)
        out = model.generate(
            ids,
            attention_mask=mask.to(model.device),
            generation_config=_settings(jobs[0]),
            stopping_criteria=StoppingCriteriaList([_ended_by_strings(jobs, width)]),
        )
    tokens = out.sequences[:, width:]
    columns = [
        scores.float().log_softmax(-1).gather(1, tokens[:, i : i + 1])
        for i, scores in enumerate(out.scores)
    ]
    return tokens.tolist(), torch.cat(columns, 1).tolist()


def _settings(job: Job) -> Any:
    from transformers import GenerationConfig

    sampling, greedy = job.sampling, job.sampling.temperature == 0
    drawn = {
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p or None,
    }
    return GenerationConfig(
        do_sample=not greedy,
        max_new_tokens=sampling.max_new_tokens,
        min_new_tokens=sampling.min_new_tokens or None,
        eos_token_id=list(job.stop_ids) or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **({} if greedy else drawn),
    )


def _ended_by_strings(jobs: list[Job], width: int) -> Any:
    """A stopping criterion: whether the last token of each row completes one of its strings."""
    import torch
    from transformers import StoppingCriteria

    class Ended(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            rows = input_ids[:, width:].tolist()
            done = [_completes(job, ids) for job, ids in zip(jobs, rows, strict=True)]
            return torch.tensor(done, device=input_ids.device)

    return Ended()


def _completes(job: Job, ids: list[int]) -> bool:
    enough = len(ids) >= job.sampling.min_new_tokens
    return job.strings is not None and enough and job.strings.completed_by_last(ids)


def _cut(job: Job, ids: list[int], logprobs: list[float], version: int) -> Completion:
    """The response up to its end: what follows in the row is padding."""
    reason: FinishReason = "length"
    for count in range(1, len(ids) + 1):
        if ids[count - 1] in job.stop_ids or _completes(job, ids[:count]):
            ids, logprobs, reason = ids[:count], logprobs[:count], "stop"
            break
    return Completion(tuple(ids), tuple(logprobs), (version,) * len(ids), reason)

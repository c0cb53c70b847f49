"""Micro-batches through the stages, by Megatron's own schedules (1F1B, interleaved).

The head runs on the last stage only, on hidden states at response tokens: logits of a batch never
exist, and the vocabulary is never gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlframe_strategies.head import LogitMap, token_logprobs
from rlframe_strategies.megatron.feeding import Feed
from rlframe_strategies.megatron.parallel import Parallel
from rlframe_strategies.packing import to_rows
from rlframe_strategies.vocabulary import Vocabulary, vocabulary_logprobs

__all__ = ["Head", "Pipeline"]

Finish = Callable[[dict[str, Tensor], int], Tensor | None]
"""From a micro-batch's outputs and its number to its share of the loss; None: nothing to learn."""


@dataclass(frozen=True)
class Head:
    """What the last stage makes of hidden states; ``weight`` has this rank's real rows alone."""

    kind: str
    weight: Tensor
    bias: Tensor | None
    logits: LogitMap
    vocabulary: Vocabulary | None

    def __call__(self, states: Tensor, fed: Feed, computes: Sequence[str]) -> dict[str, Tensor]:
        """Whole rows (b, R), or a score a row (b,), float32, of states (S, b, H)."""
        if self.kind == "score":
            return {"scores": self._number(states[fed.last])}
        chosen = states[fed.take]
        if self.kind == "value":
            return {"values": to_rows(self._number(chosen), fed.inputs)}
        labels, entropy = fed.inputs.labels, "entropy" in computes
        if self.vocabulary is None:
            flat = token_logprobs(
                chosen, self.weight, self.bias, labels, self.logits, entropy=entropy
            )
        else:
            head = (self.weight, self.bias)
            flat = vocabulary_logprobs(
                chosen, head, labels, self.logits, self.vocabulary, entropy=entropy
            )
        named = zip(("logprobs", "entropy"), flat, strict=True)
        return {name: to_rows(values, fed.inputs) for name, values in named if values is not None}

    def _number(self, states: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        return nn.functional.linear(states.to(weight.dtype), weight, bias)[:, 0].float()


class Pipeline:
    """Runs micro-batches on this rank's chunks of the model."""

    def __init__(self, chunks: Sequence[Any], config: Any, parallel: Parallel) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self._chunks, self._config, self._parallel = list(chunks), config, parallel
        self._schedule = get_forward_backward_func()

    def run(
        self,
        feeds: Sequence[Feed],
        head: Callable[[], Head],
        computes: Sequence[str],
        finish: Finish,
        *,
        learn: bool,
    ) -> None:
        """``finish`` is called on the last stage, in order; ``learn`` adds gradients."""
        for chunk in self._chunks:
            chunk.train(learn)
        items = [*enumerate(feeds)]
        rest = -len(items) % self._parallel.sizes.pp if len(self._chunks) > 1 else 0
        items += [(-1, feeds[-1])] * rest  # the interleaved schedule wants a multiple of the stages

        def step(items: Iterator[tuple[int, Feed]], model: Any) -> tuple[Tensor, Any]:
            number, fed = next(items)
            hidden = model(
                input_ids=fed.ids,
                position_ids=fed.positions,
                attention_mask=fed.mask,
                packed_seq_params=fed.packed(),
                output_processor=_states,
            )

            def loss(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
                share = None
                if number >= 0:
                    states = self._whole(hidden)
                    share = finish(head()(states, fed, computes), number)
                tokens = torch.zeros((), dtype=torch.int, device=hidden.device)
                return _nothing(hidden) if share is None else share, tokens, {}

            return hidden, loss

        iterators = [iter(items) for _ in self._chunks]
        several = len(self._chunks) > 1
        width, rows = feeds[0].shape
        self._schedule(
            forward_step_func=step,
            data_iterator=iterators if several else iterators[0],
            model=self._chunks if several else self._chunks[0],
            num_microbatches=len(items),
            seq_length=width,
            micro_batch_size=rows,
            forward_only=not learn,
        )

    def _whole(self, hidden: Tensor) -> Tensor:
        """(S, b, H) from this rank's tokens where sequence parallelism cuts them."""
        if not self._config.sequence_parallel:
            return hidden
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        # Every rank has the whole gradient of the gathered states: its own part is cut out of it.
        whole: Tensor = gather_from_sequence_parallel_region(
            hidden, tensor_parallel_output_grad=False
        )
        return whole


def _nothing(hidden: Tensor) -> Tensor:
    """A loss without effect, which still makes the backward pass run through all stages."""
    return hidden.float().sum() * 0.0


def _states(*, hidden_states: Tensor, **_: Any) -> Tensor:
    """What Megatron's model gives instead of logits."""
    return hidden_states

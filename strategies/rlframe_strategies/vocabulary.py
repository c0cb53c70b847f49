"""Log-probabilities and entropy where each rank has a part of the vocabulary.

Neither logits nor the head are gathered: ranks exchange four numbers a position in the forward
pass, and the sum of the hidden states' gradients in the backward pass. **N** positions, **H**
hidden width, **W** tokens of this rank's part, **c** positions of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rlframe_strategies.head import LogitMap, chunks, head_backward, make_logits

if TYPE_CHECKING:
    from rlframe_strategies.peers import Peers

__all__ = ["Vocabulary", "vocabulary_logprobs"]


@dataclass(frozen=True)
class Vocabulary:
    """This rank's part of ``size`` tokens begins at ``low``; its ``peers`` have the others."""

    peers: Peers
    low: int
    size: int

    def own(self, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Tokens as rows of this rank's part, 0 where they are not in it; whether they are."""
        rows = labels - self.low
        inside = (rows >= 0) & (rows < count)
        return rows.masked_fill(~inside, 0), inside


def vocabulary_logprobs(
    hidden: Tensor,
    head: tuple[Tensor, Tensor | None],
    labels: Tensor,
    logits: LogitMap,
    vocabulary: Vocabulary,
    *,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """What ``token_logprobs`` gives, with ``head`` the rank's weight (W, H) and bias (W,).

    ``hidden`` (N, H) and ``labels`` (N,) are the same on all ranks, and so are the results and the
    gradient of ``hidden``; those of the head are the rank's own.
    """
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _VocabularyLogprobs.apply)
    shared = vocabulary.peers.copy(hidden)
    logprobs, entropies = apply(shared, *head, labels, logits, vocabulary, entropy)
    return logprobs, entropies if entropy else None


class _VocabularyLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        logits: LogitMap,
        vocabulary: Vocabulary,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        rows, inside = vocabulary.own(labels, len(weight))
        found = torch.zeros(4, len(hidden), dtype=torch.float32, device=hidden.device)
        for part in chunks(len(hidden), len(weight)):
            out, _ = make_logits(hidden[part], weight, bias, logits)
            picked = out.gather(1, rows[part, None])[:, 0]
            top = out.amax(1)
            out -= top[:, None]
            weights = torch.exp(out) if entropy else out.exp_()
            found[0, part], found[1, part] = top, weights.sum(1)
            found[2, part] = picked.masked_fill(~inside[part], 0.0)
            if entropy:
                found[3, part] = out.mul_(weights).sum(1)
        log_z, logprobs, entropies = _join(vocabulary.peers.gather(found))
        entropies = entropies if entropy else logprobs.new_zeros(0)
        ctx.save_for_backward(hidden, weight, bias, rows, log_z, entropies, inside)
        ctx.logits = logits
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, inside = ctx.saved_tensors
        made = head_backward(tuple(saved), ctx.logits, ctx.needs_input_grad[:3], grads, inside)
        return (*made, None, None, None, None)


def _join(every: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From (ranks, 4, N) of maximum, sum, picked logit and weighted sum to whole distributions.

    Log of the partition function, log-probability of the label, entropy: (N,) each.
    """
    tops, totals, picked, weighted = every.unbind(1)
    top = tops.amax(0)
    scale = torch.exp(tops - top)
    total = (totals * scale).sum(0)
    log_total = total.log()
    mean = ((weighted + (tops - top) * totals) * scale).sum(0) / total
    log_z = log_total + top
    return log_z, picked.sum(0) - log_z, log_total - mean

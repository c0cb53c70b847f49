"""Log-probabilities and entropy from hidden states, without ever holding a batch's logits.

Logits are made chunk by chunk over positions, in the forward pass and once more in the backward
pass. **N** positions, **H** hidden width, **V** vocabulary, **c** positions of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

__all__ = [
    "LogitMap",
    "add_product",
    "chunks",
    "head_backward",
    "make_logits",
    "token_logprobs",
]

_CHUNK_ELEMENTS = 1 << 22
_MIN_CHUNK, _MAX_CHUNK = 128, 4096


@dataclass(frozen=True)
class LogitMap:
    """What a model does to ``hidden @ weight.T + bias``: scaled, capped by ``cap * tanh(x / cap)``.

    The result is divided by ``temperature``.
    """

    scale: float = 1.0
    softcap: float = 0.0
    temperature: float = 1.0

    @property
    def factor(self) -> float:
        """What multiplies uncapped logits."""
        return self.scale if self.softcap else self.scale / self.temperature


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    logits: LogitMap,
    *,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each label and entropy of each distribution, nats, float32.

    Shapes: ``hidden`` (N, H), ``weight`` (V, H), ``bias`` (V,), ``labels`` (N,) -> (N,), (N,).
    Differentiable in hidden, weight and bias, through both results.
    """
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _TokenLogprobs.apply)
    logprobs, entropies = apply(hidden, weight, bias, labels, logits, entropy)
    return logprobs, entropies if entropy else None


def chunks(positions: int, vocabulary: int) -> Iterator[slice]:
    """Parts of the positions, of a few million logits each."""
    size = min(max(_CHUNK_ELEMENTS // vocabulary, _MIN_CHUNK), _MAX_CHUNK)
    for start in range(0, positions, size):
        yield slice(start, min(start + size, positions))


def make_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, logits: LogitMap
) -> tuple[Tensor, Tensor | None]:
    """(c, V) float32 logits under the temperature, and the tanh that capped them."""
    out = hidden @ weight.T
    if bias is not None:
        out += bias
    out = out.float()
    if logits.factor != 1:
        out *= logits.factor
    if not logits.softcap:
        return out, None
    squashed = out.div_(logits.softcap).tanh_()
    return squashed * (logits.softcap / logits.temperature), squashed


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        logits: LogitMap,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        n = len(hidden)
        logprobs = torch.empty(n, dtype=torch.float32, device=hidden.device)
        log_z = torch.empty_like(logprobs)
        entropies = torch.empty_like(logprobs) if entropy else logprobs.new_zeros(0)
        for part in chunks(n, len(weight)):
            out, _ = make_logits(hidden[part], weight, bias, logits)
            picked = out.gather(1, labels[part, None])[:, 0]
            top = out.amax(1, keepdim=True)
            out -= top
            weights = torch.exp(out) if entropy else out.exp_()
            total = weights.sum(1)
            log_total = total.log()
            if entropy:
                entropies[part] = log_total - out.mul_(weights).sum(1) / total
            log_z[part] = log_total + top[:, 0]
            logprobs[part] = picked - log_z[part]
        ctx.save_for_backward(hidden, weight, bias, labels, log_z, entropies)
        ctx.logits = logits
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        made = head_backward(ctx.saved_tensors, ctx.logits, ctx.needs_input_grad[:3], grads)
        return (*made, None, None, None)


def head_backward(
    saved: tuple[Tensor, ...],
    logits: LogitMap,
    needs: tuple[bool, ...],
    grads: tuple[Tensor | None, ...],
    inside: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of hidden states, weight and bias from those of log-probabilities and entropies.

    ``saved``: hidden (N, H), weight (V, H), bias (V,), labels, log of the partition function and
    entropies, (N,) each; ``inside`` (N,) says which labels are rows of this weight (None: all).
    """
    hidden, weight, bias, labels, log_z, entropies = saved
    grad_logprobs, grad_entropies = grads[0], grads[1]
    if grad_entropies is not None and not len(entropies):
        grad_entropies = None
    if grad_logprobs is None and grad_entropies is None:
        return (None,) * 3
    grad_hidden = torch.empty_like(hidden) if needs[0] else None
    grad_weight = _zeros(weight) if needs[1] else None
    grad_bias = _zeros(bias) if bias is not None and needs[2] else None
    for part in chunks(len(hidden), len(weight)):
        out, squashed = make_logits(hidden[part], weight, bias, logits)
        grad = _grad_logits(
            out.sub_(log_z[part, None]),
            labels[part],
            entropies[part],
            None if grad_logprobs is None else grad_logprobs[part],
            None if grad_entropies is None else grad_entropies[part],
            None if inside is None else inside[part],
        )
        if squashed is not None:
            grad *= (1 - squashed.square_()) * (logits.scale / logits.temperature)
        elif logits.factor != 1:
            grad *= logits.factor
        if grad_bias is not None:
            grad_bias += grad.sum(0)
        grad = grad.to(hidden.dtype)
        if grad_hidden is not None:
            torch.mm(grad, weight, out=grad_hidden[part])
        if grad_weight is not None:
            add_product(grad_weight, grad, hidden[part])
    return (
        grad_hidden,
        None if grad_weight is None else grad_weight.to(weight.dtype),
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    )


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add grad.T @ hidden, in float32 however low the operands' precision."""
    if grad.dtype == total.dtype:
        total.addmm_(grad.T, hidden)
    else:
        total += grad.T @ hidden


def _grad_logits(
    log_p: Tensor,
    labels: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor | None,
    grad_entropies: Tensor | None,
    inside: Tensor | None,
) -> Tensor:
    """Gradient at the (c, V) logits; consumes ``log_p``.

    d log p_y / dl = onehot(y) - p;  d entropy / dl = -p (log p + entropy).
    """
    if grad_entropies is None:
        assert grad_logprobs is not None
        grad = log_p.exp_().mul_(-grad_logprobs[:, None])
    else:
        p = log_p.exp()
        grad = log_p.add_(entropies[:, None]).mul_(-grad_entropies[:, None])
        if grad_logprobs is not None:
            grad -= grad_logprobs[:, None]
        grad *= p
    if grad_logprobs is not None:
        picked = grad_logprobs if inside is None else grad_logprobs.masked_fill(~inside, 0.0)
        grad.scatter_add_(1, labels[:, None], picked[:, None])
    return grad

"""How far a student's next-token distribution is from a teacher's, with its gradient.

Both models' logits are made chunk by chunk over positions, once in the forward pass and once more
in the backward pass, so that (N, V) never exists whole. **N** positions, **H** and **G** hidden
widths, **V** vocabulary, **c** positions of a chunk, **K** outcomes that are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rlframe.algorithm import Divergence
from rlframe_strategies.head import LogitMap, add_product, chunks, make_logits
from rlframe_strategies.outcomes import Outcomes
from rlframe_strategies.vocabulary import Vocabulary

__all__ = ["Beside", "Head", "token_divergence"]


class Head(NamedTuple):
    """What makes logits of hidden states: ``weight`` (V, H), ``bias`` (V,)."""

    weight: Tensor
    bias: Tensor | None
    logits: LogitMap


@dataclass(frozen=True)
class Beside:
    """Another model on the same positions: its hidden states (N, G) and head; what to measure."""

    teacher: tuple[Tensor, Head]
    form: Divergence


def token_divergence(
    student: tuple[Tensor, Head],
    teacher: tuple[Tensor, Head],
    form: Divergence,
    vocabulary: Vocabulary | None = None,
) -> Tensor:
    """The divergence at each position, nats, float32: (N,).

    ``student`` and ``teacher`` are hidden states, (N, H) and (N, G), and the head over them. It is
    differentiable in the student's hidden states, weight and bias, never in the teacher's.

    With p of the student and q of the teacher: "reverse-kl" is KL(p || q), "forward-kl" is
    KL(q || p), "jsd" is ``mix KL(q || m) + (1 - mix) KL(p || m)`` with ``m = mix q + (1 - mix) p``
    (GKD, 2306.13649). ``top_k`` tells the teacher's k most probable tokens apart and takes all
    others together as one outcome: a lower bound that is exact for k = V. With a ``vocabulary``
    both heads are this rank's part of it.
    """
    (hidden, head), (other, other_head) = student, teacher
    fixed = _Fixed(
        other.detach(),
        Head(
            other_head.weight.detach(),
            None if other_head.bias is None else other_head.bias.detach(),
            other_head.logits,
        ),
        head.logits,
        form,
        Outcomes(vocabulary),
    )
    apply = cast("Callable[..., Tensor]", _TokenDivergence.apply)
    return apply(fixed.outcomes.share(hidden), head.weight, head.bias, fixed)


@dataclass(frozen=True)
class _Fixed:
    """What no gradient flows into."""

    hidden: Tensor
    head: Head
    own: LogitMap
    form: Divergence
    outcomes: Outcomes


class _TokenDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, fixed: _Fixed
    ) -> Tensor:
        out = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        outcomes = fixed.outcomes
        for part in chunks(len(hidden), outcomes.widest(len(weight))):
            log_p, _ = _log_softmax(hidden[part], Head(weight, bias, fixed.own), outcomes)
            log_q, _ = _log_softmax(fixed.hidden[part], fixed.head, outcomes)
            coarse_p, coarse_q, tokens = _coarse(log_p, log_q, fixed.form, outcomes)
            terms = _terms(coarse_p, coarse_q, fixed.form)
            out[part] = outcomes.sum(terms) if tokens is None else terms.sum(1)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.fixed = fixed
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        fixed: _Fixed = ctx.fixed
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        outcomes = fixed.outcomes
        for part in chunks(len(hidden), outcomes.widest(len(weight))):
            log_p, squashed = _log_softmax(hidden[part], Head(weight, bias, fixed.own), outcomes)
            log_q, _ = _log_softmax(fixed.hidden[part], fixed.head, outcomes)
            grad = _grad_logits(log_p, log_q, fixed.form, outcomes).mul_(grads[0][part, None])
            if squashed is not None:
                grad *= (1 - squashed.square_()) * (fixed.own.scale / fixed.own.temperature)
            else:
                grad *= fixed.own.factor
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[part])
            add_product(grad_weight, grad, hidden[part])
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        return (
            grad_hidden,
            grad_weight.to(weight.dtype) if needs_weight else None,
            grad_bias.to(bias.dtype) if grad_bias is not None and needs_bias else None,
            None,
        )


def _log_softmax(hidden: Tensor, head: Head, outcomes: Outcomes) -> tuple[Tensor, Tensor | None]:
    """(c, V) log-probabilities, and the tanh that capped the logits."""
    logits, squashed = make_logits(hidden, head.weight, head.bias, head.logits)
    return outcomes.normalise(logits), squashed


def _coarse(
    log_p: Tensor, log_q: Tensor, form: Divergence, outcomes: Outcomes
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Both as (c, K) log-probabilities of the outcomes told apart; their tokens (c, K - 1)."""
    if not form.top_k or form.top_k >= outcomes.size(log_q.shape[1]):
        return log_p, log_q, None
    tokens = outcomes.top(log_q, form.top_k)

    def gathered(logs: Tensor) -> Tensor:
        return torch.cat([outcomes.pick(logs, tokens), outcomes.rest(logs, tokens)], 1)

    return gathered(log_p), gathered(log_q), tokens


def _log_mixture(log_p: Tensor, log_q: Tensor, mix: float) -> Tensor:
    return torch.logaddexp(log_p + math.log(1 - mix), log_q + math.log(mix))


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Terms of KL(a || b), (c, K); an outcome without probability under a adds nothing."""
    term = log_a.exp() * (log_a - log_b)
    return torch.where(log_a == -torch.inf, 0.0, term)


def _terms(log_p: Tensor, log_q: Tensor, form: Divergence) -> Tensor:
    """What each outcome adds, (c, K)."""
    if form.kind == "reverse-kl":
        return _kl(log_p, log_q)
    if form.kind == "forward-kl":
        return _kl(log_q, log_p)
    mixture = _log_mixture(log_p, log_q, form.mix)
    return form.mix * _kl(log_q, mixture) + (1 - form.mix) * _kl(log_p, mixture)


def _grad_logits(log_p: Tensor, log_q: Tensor, form: Divergence, outcomes: Outcomes) -> Tensor:
    """Gradient at the student's (c, V) logits.

    Where g is the derivative by an outcome's probability, it is ``p (g - sum p g)``: g is
    ``log p - log q`` for reverse-kl and ``(1 - mix) (log p - log m)`` for jsd (what is constant
    over the outcomes cancels). All tokens of the last outcome share its g. For forward-kl it is
    ``p - q`` with the last outcome's q shared out by p.
    """
    coarse_p, coarse_q, tokens = _coarse(log_p, log_q, form, outcomes)
    if form.kind == "forward-kl":
        if tokens is None:
            return log_p.exp() - log_q.exp()
        shared = log_p + (coarse_q[:, -1:] - coarse_p[:, -1:])
        return log_p.exp() - outcomes.put(shared, tokens, coarse_q[:, :-1]).exp()
    if form.kind == "reverse-kl":
        g = coarse_p - coarse_q
    else:
        g = (1 - form.mix) * (coarse_p - _log_mixture(coarse_p, coarse_q, form.mix))
    possible = coarse_p != -torch.inf
    g = torch.where(possible, g, 0.0)
    weighted = coarse_p.exp() * g
    if tokens is None:
        return log_p.exp() * (g - outcomes.sum(weighted)[:, None])
    each = outcomes.put(g[:, -1:].expand_as(log_p), tokens, g[:, :-1])
    return log_p.exp() * (each - weighted.sum(1, keepdim=True))

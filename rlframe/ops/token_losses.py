"""Policy losses whose weight is each token's own: neither masked nor reduced, nats."""

from __future__ import annotations

import torch
from torch import Tensor

from rlframe.ops.ratios import log_ratio

__all__ = [
    "divergence_masked",
    "divergence_outside",
    "policy_gradient",
    "soft_gated",
    "weight_clipped",
]


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """``-A log pi`` (REINFORCE, Williams 1992): all (b, R) -> (b, R)."""
    return -advantages * logprobs


def weight_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_high: float,
    clip_low: float | None = None,
) -> Tensor:
    """``-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi`` (CISPO, 2506.13585, eq. 4).

    All (b, R) -> (b, R). The weight is a constant, so that no token loses its gradient.
    ``clip_low=None`` sets no lower bound.
    """
    low = None if clip_low is None else 1 - clip_low
    weight = log_ratio(logprobs, old_logprobs).exp().clamp(low, 1 + clip_high).detach()
    return -weight * advantages * logprobs


def soft_gated(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Tensor:
    """``-sigmoid(tau (r - 1)) 4 / tau A``, tau by the sign of A (SAPO, 2511.20347, eq. 5).

    All (b, R) -> (b, R). The gradient's weight ``4 sigmoid (1 - sigmoid) r`` is 1 at r = 1 and
    fades on both sides instead of ending. ``tau_negative`` also where A = 0.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp()
    tau = torch.where(advantages > 0, tau_positive, tau_negative).to(ratio.dtype)
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages


def divergence_masked(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    threshold: float,
    kind: str = "tv",
    most: float = 20.0,
) -> Tensor:
    """``-sg(min(r, most)) A log pi``, 0 outside the trust region (DPPO, 2602.04879, binary form).

    All (b, R) -> (b, R); outside as in :func:`divergence_outside`. Raises ValueError for another
    ``kind`` than tv and kl.
    """
    weight = log_ratio(logprobs, old_logprobs).exp().clamp(max=most).detach()
    loss = -weight * advantages * logprobs
    outside = divergence_outside(logprobs, old_logprobs, advantages, threshold, kind)
    return torch.where(outside, torch.zeros_like(loss), loss)


def divergence_outside(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, threshold: float, kind: str = "tv"
) -> Tensor:
    """Tokens that have left the trust region and would go further: (b, R) bool, no gradient.

    Of the sampled token's probabilities p and p_old: ``tv`` is ``|p - p_old|``, ``kl`` that of
    Bernoulli(p_old) to Bernoulli(p). A token is outside where this exceeds ``threshold`` and p has
    already moved the way that A pushes it.
    """
    new, old = logprobs.detach().double(), old_logprobs.detach().double()
    p, p_old = new.exp(), old.exp()
    if kind == "tv":
        distance = (p - p_old).abs()
    elif kind == "kl":
        tiny = torch.finfo(torch.float32).tiny
        rest_old, rest = (-torch.expm1(x.clamp(max=0.0)) for x in (old, new))
        there = rest_old * (rest_old.clamp(min=tiny).log() - rest.clamp(min=tiny).log())
        distance = p_old * (old - new) + there
    else:
        raise ValueError(f"unknown divergence '{kind}': take tv or kl")
    further = torch.where(advantages > 0, p > p_old, p < p_old)
    return further & (distance > threshold) & (advantages != 0)

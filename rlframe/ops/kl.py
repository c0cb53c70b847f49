"""KL divergence to a reference from sampled tokens. All log-probabilities in nats.

With k1 = log pi - log ref the estimators of KL(pi || ref) are k1, k2 = k1^2 / 2 and
k3 = ref / pi - 1 + k1 (Schulman, "Approximating KL divergence", 2020). A good *value* is not a
good *loss*: on on-policy samples the gradient of k1 is zero in expectation, that of k2 is the
gradient of KL(pi || ref), that of k3 is the gradient of KL(ref || pi).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["kl_loss", "kl_reward", "kl_value"]


_MOST = 20.0
"""Largest log ratio whose exponential counts, nats: float32 overflows at 88."""


def kl_loss(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k3+") -> Tensor:
    """A per-token KL term to minimise: (b, R), (b, R) -> (b, R), nats.

    ``k1``, ``k2`` and ``k3`` are differentiated as they stand; ``k3+`` has k3's value (unbiased,
    never negative) and k2's gradient, which is that of KL(pi || ref). No gradient flows into
    ``ref_logprobs``. Tokens are weighted alike: off policy the caller multiplies by a ratio.

    Raises ValueError for another estimator.
    """
    ref = ref_logprobs.detach()
    if estimator != "k3+":
        return _estimate(logprobs - ref, estimator)
    k2 = _estimate(logprobs - ref, "k2")
    return k2 + (_estimate(logprobs - ref, "k3") - k2).detach()


def kl_value(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k1") -> Tensor:
    """A per-token KL estimate without gradient, for rewards and figures: (b, R) -> (b, R), nats.

    Raises ValueError for an unknown estimator.
    """
    name = "k3" if estimator == "k3+" else estimator
    return _estimate((logprobs - ref_logprobs).detach(), name)


def kl_reward(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    coef: float | Tensor,
    estimator: str = "k1",
) -> Tensor:
    """What a KL penalty adds to each token's reward: ``-coef * estimate``, (B, R), nats.

    All (B, R), ``mask`` bool; exactly 0 outside it, whatever stands there. A policy that moves away
    from the reference earns less. No gradient. Raises ValueError for an unknown estimator.
    """
    penalty = coef * kl_value(logprobs, ref_logprobs, estimator)
    return torch.where(mask, -penalty, torch.zeros_like(penalty))


def _estimate(k1: Tensor, estimator: str) -> Tensor:
    if estimator == "k1":
        return k1
    if estimator == "k2":
        return k1.square() / 2
    if estimator == "k3":
        return torch.expm1((-k1).clamp(max=_MOST)) + k1
    raise ValueError(f"unknown KL estimator '{estimator}': take k1, k2, k3 or k3+")

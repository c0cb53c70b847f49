"""Tokens by the covariance of log-probability and advantage (2505.22617), over a whole mini-batch.

What is drawn at random is drawn by a hash of who the token is, not of where it stands, so that
every rank, split and order of the same mini-batch draws the same tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.ops.masked import masked_mean
from rlframe.ops.ratios import log_ratio

__all__ = [
    "absolute_kl",
    "draw_tokens",
    "share_of_tokens",
    "token_covariance",
    "token_keys",
    "top_tokens",
]

Hashes = NDArray[np.uint64]

_FADE = 1e-3


def token_covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """``(log pi - mean log pi) (A - mean A)``, means over the True slots: (B, R) float64.

    Equation 10 of the paper. 0 where ``mask`` is False; what stands there is never read.
    """
    logp, adv = (torch.where(mask, x.detach().double(), 0.0) for x in (logprobs, advantages))
    product = (logp - masked_mean(logp, mask)) * (adv - masked_mean(adv, mask))
    return torch.where(mask, product, 0.0)


def token_keys(episode_ids: Tensor, prompt_lengths: Tensor, width: int, seed: int = 0) -> Tensor:
    """A pseudo-random number in [0, 1) for each token of each row: (B,), (B,) -> (B, width).

    It depends on the episode, on where in it the row begins, on the position, and on ``seed``.
    """
    row = _mixed(np.full(len(episode_ids), seed, np.uint64))
    for part in (episode_ids, prompt_lengths):
        row = _mixed(row ^ part.cpu().numpy().astype(np.uint64))
    keys = _mixed(row[:, None] ^ _mixed(np.arange(width, dtype=np.uint64)))
    return torch.from_numpy((keys >> np.uint64(11)).astype(np.float64) / 2.0**53)


def absolute_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``|log pi_old - log pi|``, with a gradient in ``logprobs``: (b, R), (b, R) -> (b, R), nats.

    Within 0.001 nats of 0 the gradient fades: on policy the difference is rounding, whose sign
    would otherwise push the token with full weight either way.
    """
    gap = log_ratio(logprobs, old_logprobs)
    fading = (gap.detach() / _FADE).clamp(-1, 1) * gap
    return fading + (gap.abs() - fading).detach()


def share_of_tokens(mask: Tensor, share: float) -> int:
    """``share`` of the True slots, rounded down, at least 1 where there are both."""
    total = int(mask.sum())
    return max(int(share * total + 1e-9), 1) if total and share > 0 else 0


def draw_tokens(candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """``count`` of the candidates (all where there are fewer), by smallest key: (B, R) bool."""
    return _first(torch.where(candidates, keys, torch.inf), candidates, count)


def top_tokens(values: Tensor, candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """The ``count`` candidates of the largest values, ties by smallest key: (B, R) bool."""
    order = torch.argsort(keys.flatten())
    by_value = torch.argsort(values.flatten()[order], descending=True, stable=True)
    place = torch.empty_like(order)
    place[order[by_value]] = torch.arange(len(order))
    scored = torch.where(candidates, place.view(values.shape).double(), torch.inf)
    return _first(scored, candidates, count)


def _first(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    chosen = torch.zeros_like(candidates).flatten()
    least = torch.argsort(scores.flatten())[: min(count, int(candidates.sum()))]
    chosen[least] = True
    return chosen.view(candidates.shape)


def _mixed(numbers: Hashes) -> Hashes:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every bit depends on every bit."""
    with np.errstate(over="ignore"):
        x = numbers + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

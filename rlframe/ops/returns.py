"""Returns of tokens without a critic."""

from __future__ import annotations

import torch
from torch import Tensor

from rlframe.ops.temporal import gae, suffix_sums

__all__ = ["reward_to_go"]


def reward_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """``sum over k >= t of gamma^(k - t) r_k`` over the True slots of each row, 0 elsewhere.

    Shapes: ``rewards`` (B, R) float, ``mask`` (B, R) bool -> (B, R), dtype kept. A masked slot is
    no step: its reward (NaN too) is never read, and the discount passes over it. Sums over many
    tokens are carried in float64.
    """
    if gamma != 1:
        return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)[0]
    return suffix_sums(torch.where(mask, rewards, 0.0), 1.0).masked_fill_(~mask, 0.0)

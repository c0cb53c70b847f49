"""Returns of tokens without a critic."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlframe.ops.temporal import gae

__all__ = ["reward_to_go"]


def reward_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """``sum over k >= t of gamma^(k - t) r_k`` over the True slots of each row, 0 elsewhere.

    Shapes: ``rewards`` (B, R) float, ``mask`` (B, R) bool -> (B, R), summed in float64, dtype kept.
    A masked slot is no step: its reward (NaN too) is never read, and the discount passes over it.
    """
    if gamma != 1:
        return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)[0]
    exact = torch.where(mask, rewards, 0.0).cpu().numpy()
    backwards = np.cumsum(exact[:, ::-1], axis=1, dtype=np.float64)
    to_go = torch.from_numpy(backwards[:, ::-1].astype(exact.dtype, order="C"))
    return torch.where(mask, to_go.to(rewards.device), 0.0)

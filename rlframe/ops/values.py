"""Losses of a critic, per token: neither masked nor reduced."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped_value_loss", "value_clip_fraction"]


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = 0.5
) -> Tensor:
    """``1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)``: all (b, R) -> (b, R).

    The value loss of PPO's first implementation (1707.06347; OpenAI baselines, ppo2), in which a
    value may move at most ``clip`` from what it was before the update. ``clip=None``: squared error
    alone.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    return torch.maximum(plain, (_near(values, old_values, clip) - returns).square()) / 2


def value_clip_fraction(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = 0.5
) -> Tensor:
    """Where the clipped branch of :func:`clipped_value_loss` counts: (b, R) float of 0 and 1."""
    if clip is None:
        return torch.zeros_like(values)
    clipped = (_near(values, old_values, clip) - returns).square()
    return (clipped > (values - returns).square()).to(values.dtype)


def _near(values: Tensor, old_values: Tensor, clip: float) -> Tensor:
    return torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)

"""Advantages from the rewards of a group: by id, of any size, in any order.

A sample counts in its group's statistics when it is trained on, has at least one token that the
policy sampled, and has a reward (NaN: every reward abstained). An episode of several rows counts
once, and all its rows get its advantage. Rows that do not count get 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlframe.batch import Batch

__all__ = [
    "GroupStats",
    "group_mean_baseline",
    "group_normalised",
    "group_stats",
    "has_signal",
    "leave_one_out",
]

_EQUAL = 1e-6
"""Rewards of a group are equal when max - min is at most this times max(1, |max|)."""


@dataclass(frozen=True)
class GroupStats:
    """Figures of each row's group, all (B,) float64 unless said otherwise.

    ``rewards`` 0 where ``valid`` (bool) is False; ``count`` episodes that count; ``mean``; ``std``
    the sample standard deviation (n - 1; 0 for one); ``signal`` (bool) False where the group's
    rewards are equal.
    """

    rewards: Tensor
    valid: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor
    signal: Tensor

    def advantage(self, values: Tensor) -> Tensor:
        """``values`` (B,) where the row counts and its group has a signal, else exactly 0; f32."""
        return torch.where(self.valid & self.signal, values, 0.0).float()


def group_stats(
    rewards: Tensor, group_ids: Tensor, valid: Tensor, episode_ids: Tensor | None = None
) -> GroupStats:
    """Statistics of the valid rows of each group, in float64.

    Shapes: ``rewards`` (B,) float, ``group_ids`` and ``episode_ids`` (B,) int64, ``valid`` (B,)
    bool. Rows of one episode count once; without ``episode_ids`` each row is an episode.
    """
    valid = valid & ~torch.isnan(rewards)
    counted = valid if episode_ids is None else _first_rows(episode_ids, valid)
    _, group = torch.unique(group_ids, return_inverse=True)
    size = int(group.max()) + 1 if len(group) else 0

    def per_group(values: Tensor) -> Tensor:
        empty = torch.zeros(size, dtype=torch.float64)
        return empty.index_add(0, group, torch.where(counted, values, 0.0))

    def extreme(how: str) -> Tensor:
        worst = float("-inf") if how == "amax" else float("inf")
        start = torch.full((size,), worst, dtype=torch.float64)
        return start.scatter_reduce(0, group, torch.where(counted, exact, worst), how)

    exact = torch.where(valid, rewards.double(), 0.0)
    count = per_group(torch.ones_like(exact))
    mean = per_group(exact) / count.clamp(min=1)
    squares = per_group((exact - mean[group]).square())
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    high, low = extreme("amax"), extreme("amin")
    signal = (count > 1) & (high - low > _EQUAL * high.abs().clamp(min=1))
    return GroupStats(exact, valid, count[group], mean[group], std[group], signal[group])


def group_mean_baseline(batch: Batch | Mapping[str, Tensor]) -> Tensor:
    """Reward minus the mean of its group, (B,) f32 (Dr. GRPO, 2503.20783).

    Reads ``rewards``, ``group_ids``, ``episode_ids``, ``train``, ``response_tokens``. 0 for a group
    of one and where all rewards of the group are equal.
    """
    stats = _of_batch(batch)
    return stats.advantage(stats.rewards - stats.mean)


def group_normalised(batch: Batch | Mapping[str, Tensor], *, eps: float = 1e-6) -> Tensor:
    """``(reward - mean) / (std + eps)`` over the group, (B,) f32 (GRPO, 2402.03300, section 4.1).

    The sample standard deviation (n - 1). Exactly 0 for a group of one, and where
    ``max - min <= 1e-6 max(1, |max|)``: rounding must not be divided by a tiny std. Reads the
    columns of :func:`group_mean_baseline`.
    """
    stats = _of_batch(batch)
    return stats.advantage((stats.rewards - stats.mean) / (stats.std + eps))


def leave_one_out(batch: Batch | Mapping[str, Tensor]) -> Tensor:
    """Reward minus the mean of the others of its group, (B,) f32 (RLOO, 2402.14740, eq. 8).

    That is ``G / (G - 1)`` times the centred reward; 0 for a group of one. Reads the columns of
    :func:`group_mean_baseline`.
    """
    stats = _of_batch(batch)
    scale = stats.count / (stats.count - 1).clamp(min=1)
    return stats.advantage(scale * (stats.rewards - stats.mean))


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ by more than rounding, as :func:`group_normalised` tests."""
    if len(rewards) < 2:
        return False
    return max(rewards) - min(rewards) > _EQUAL * max(1.0, abs(max(rewards)))


def _of_batch(batch: Batch | Mapping[str, Tensor]) -> GroupStats:
    valid = batch["train"] & (batch["response_tokens"] > 0)
    return group_stats(batch["rewards"], batch["group_ids"], valid, batch["episode_ids"])


def _first_rows(episode_ids: Tensor, valid: Tensor) -> Tensor:
    """The first valid row of each episode: (B,), (B,) bool -> (B,) bool."""
    rows = np.flatnonzero(valid.numpy())
    _, first = np.unique(episode_ids.numpy()[rows], return_index=True)
    counted = torch.zeros_like(valid)
    counted[torch.from_numpy(rows[first])] = True
    return counted

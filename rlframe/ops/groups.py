"""Statistics of the rewards of each group: by id, of any size, in any order.

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
    from rlframe.batching.batch import Batch

__all__ = [
    "Columns",
    "GroupStats",
    "episode_most",
    "episode_sums",
    "group_stats",
    "has_signal",
    "stats_of",
]

_EQUAL = 1e-6
"""Rewards of a group are equal when max - min is at most this times max(1, |max|)."""

Columns = Mapping[str, Tensor]
"""The per-row columns that advantages read, (B,) each."""


@dataclass(frozen=True)
class GroupStats:
    """Figures of each row's group, all (B,) float64 unless said otherwise.

    ``rewards`` 0 where ``valid`` (bool) is False; ``counted`` (bool) is the first valid row of each
    episode; ``group`` (int64) numbers the groups from 0; ``count`` episodes that count; ``mean``;
    ``std`` the sample standard deviation (n - 1; 0 for one); ``signal`` (bool) False where the
    group's rewards are equal.
    """

    rewards: Tensor
    valid: Tensor
    counted: Tensor
    group: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor
    signal: Tensor

    def advantage(self, values: Tensor) -> Tensor:
        """``values`` (B,) where the row counts and its group has a signal, else exactly 0; f32."""
        return torch.where(self.valid & self.signal, values, 0.0).float()

    def sums(self, values: Tensor, rows: Tensor) -> Tensor:
        """Sum of ``values`` (B,) over the chosen ``rows`` (B,) bool of each row's group: (B,)."""
        return _per_group(values, rows, self.group)[self.group]

    def largest(self, values: Tensor, rows: Tensor) -> Tensor:
        """Largest of ``values`` (B,) over the chosen ``rows`` of each row's group; -inf: none."""
        return _extreme(values, rows, self.group, "amax")[self.group]


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
    exact = torch.where(valid, rewards.double(), 0.0)
    count = _per_group(torch.ones_like(exact), counted, group)
    mean = _per_group(exact, counted, group) / count.clamp(min=1)
    squares = _per_group((exact - mean[group]).square(), counted, group)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    high = _extreme(exact, counted, group, "amax")
    low = _extreme(exact, counted, group, "amin")
    signal = (count > 1) & (high - low > _EQUAL * high.abs().clamp(min=1))
    return GroupStats(
        exact, valid, counted, group, count[group], mean[group], std[group], signal[group]
    )


def stats_of(batch: Batch | Columns) -> GroupStats:
    """:func:`group_stats` of ``rewards``, ``group_ids``, ``episode_ids``, ``train`` and
    ``response_tokens``.
    """  # noqa: D205
    valid = batch["train"] & (batch["response_tokens"] > 0)
    return group_stats(batch["rewards"], batch["group_ids"], valid, batch["episode_ids"])


def episode_most(values: Tensor, episode_ids: Tensor) -> Tensor:
    """The largest of the rows' ``values`` (B,) over each row's episode: (B,) float64."""
    _, which = torch.unique(episode_ids, return_inverse=True)
    return _extreme(values, torch.ones_like(which, dtype=torch.bool), which, "amax")[which]


def episode_sums(values: Tensor, episode_ids: Tensor) -> Tensor:
    """The sum over all rows of each row's episode: (B,), (B,) int64 -> (B,), dtype kept."""
    _, episode = torch.unique(episode_ids, return_inverse=True)
    total = values.new_zeros(_groups(episode)).index_add(0, episode, values)
    return total[episode]


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ by more than rounding, as the advantages test it."""
    if len(rewards) < 2:
        return False
    return max(rewards) - min(rewards) > _EQUAL * max(1.0, abs(max(rewards)))


def _groups(group: Tensor) -> int:
    return int(group.max()) + 1 if len(group) else 0


def _per_group(values: Tensor, rows: Tensor, group: Tensor) -> Tensor:
    empty = torch.zeros(_groups(group), dtype=torch.float64)
    return empty.index_add(0, group, torch.where(rows, values.double(), 0.0))


def _extreme(values: Tensor, rows: Tensor, group: Tensor, how: str) -> Tensor:
    worst = float("-inf") if how == "amax" else float("inf")
    start = torch.full((_groups(group),), worst, dtype=torch.float64)
    return start.scatter_reduce(0, group, torch.where(rows, values.double(), worst), how)


def _first_rows(episode_ids: Tensor, valid: Tensor) -> Tensor:
    """The first valid row of each episode: (B,), (B,) bool -> (B,) bool."""
    rows = np.flatnonzero(valid.numpy())
    _, first = np.unique(episode_ids.numpy()[rows], return_index=True)
    counted = torch.zeros_like(valid)
    counted[torch.from_numpy(rows[first])] = True
    return counted

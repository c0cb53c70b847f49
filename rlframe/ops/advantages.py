"""Advantages from the outcomes of a group of samples: one number a row, (B,) float32.

What counts, and in which group, is :mod:`rlframe.ops.groups`' business. All read ``rewards``,
``group_ids``, ``episode_ids``, ``train`` and ``response_tokens``, (B,) each, from a ``Batch`` or a
mapping. Those that need sums over the whole batch take ``total``: on data-parallel ranks pass
``Batch.sum``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlframe.errors import RewardError
from rlframe.ops.groups import Columns, GroupStats, group_stats, stats_of
from rlframe.ops.masked import Total, local_total, masked_whiten

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch

__all__ = [
    "batch_normalised",
    "best_of_group",
    "decoupled_normalised",
    "greedy_baseline",
    "group_mean_baseline",
    "group_normalised",
    "group_share",
    "leave_one_out",
    "length_weighted_baseline",
    "mean_scaled",
    "outcome_advantages",
    "plain_reward",
]


def group_mean_baseline(batch: Batch | Columns) -> Tensor:
    """Reward minus the mean of its group (Dr. GRPO, 2503.20783).

    0 for a group of one and where all rewards of the group are equal.
    """
    stats = stats_of(batch)
    return stats.advantage(stats.rewards - stats.mean)


def group_normalised(batch: Batch | Columns, *, eps: float = 1e-6) -> Tensor:
    """``(reward - mean) / (std + eps)`` over the group (GRPO, 2402.03300, section 4.1).

    The sample standard deviation (n - 1). Exactly 0 for a group of one, and where
    ``max - min <= 1e-6 max(1, |max|)``: rounding must not be divided by a tiny std.
    """
    return _normalised(stats_of(batch), eps)


def leave_one_out(batch: Batch | Columns) -> Tensor:
    """Reward minus the mean of the others of its group (RLOO, 2402.14740, eq. 8).

    That is ``G / (G - 1)`` times the centred reward; 0 for a group of one.
    """
    stats = stats_of(batch)
    scale = stats.count / (stats.count - 1).clamp(min=1)
    return stats.advantage(scale * (stats.rewards - stats.mean))


def length_weighted_baseline(batch: Batch | Columns) -> Tensor:
    """``R_i - sum(l_j R_j) / sum(l_j)``, l in sampled tokens (OPO, 2505.23585, eq. 7).

    The optimal baseline where each token's gradient has the same norm; strictly on-policy. The
    length of an episode of several rows is their sum.
    """
    stats, length = stats_of(batch), batch["response_tokens"].double()
    weighted = stats.sums(length * stats.rewards, stats.valid)
    baseline = weighted / stats.sums(length, stats.valid).clamp(min=1)
    return stats.advantage(stats.rewards - baseline)


def group_share(batch: Batch | Columns, total: Total = local_total) -> Tensor:
    """``alpha (R - mean)``, alpha = samples / samples in groups with a signal (GPG, 2504.02546).

    Both counts are of episodes over the whole batch, so that groups without a signal, whose
    gradient is 0, do not shrink the step.
    """
    stats = stats_of(batch)
    one = torch.ones_like(stats.rewards)
    useful = total(one, stats.counted & stats.signal)
    alpha = total(one, stats.counted) / useful.clamp(min=1)
    return stats.advantage(alpha * (stats.rewards - stats.mean))


def mean_scaled(batch: Batch | Columns) -> Tensor:
    """``(R - mean) / mean`` over the group (MaxRL); 0 where the mean is 0.

    Raises RewardError for a negative mean, which would turn good samples into bad ones.
    """
    stats = stats_of(batch)
    if bool((stats.mean[stats.signal] < 0).any()):
        raise RewardError(
            "MaxRL divides by the mean reward of a group, and one is negative: "
            "use rewards of at least 0, or another algo.advantage"
        )
    scale = torch.where(stats.mean > 0, stats.mean, 1.0)
    return stats.advantage(torch.where(stats.mean > 0, (stats.rewards - stats.mean) / scale, 0.0))


def best_of_group(batch: Batch | Columns) -> Tensor:
    """How much the group's best reward would fall without the sample (pass@k, 2503.19595).

    ``max_j R_j - max_(j != i) R_j``, k = the whole group: above 0 for a single best sample, 0 for
    every other and where the best is tied.
    """
    stats = stats_of(batch)
    best = stats.largest(stats.rewards, stats.counted)
    is_best = stats.counted & (stats.rewards == best)
    second = stats.largest(stats.rewards, stats.counted & ~is_best)
    tied = stats.sums(torch.ones_like(best), is_best) > 1
    gain = torch.where(tied | ~stats.signal, 0.0, best - second)
    return stats.advantage(torch.where(stats.rewards == best, gain, 0.0))


def plain_reward(batch: Batch | Columns) -> Tensor:
    """The reward itself, no baseline (REINFORCE); 0 in rows that do not count."""
    stats = stats_of(batch)
    return torch.where(stats.valid, stats.rewards, 0.0).float()


def batch_normalised(batch: Batch | Columns, total: Total = local_total) -> Tensor:
    """``(R - mean) / sqrt(var + 1e-8)`` over the episodes of the whole batch (population)."""
    stats = stats_of(batch)
    return _whitened(stats.rewards, stats, total)


def greedy_baseline(batch: Batch | Columns) -> Tensor:
    """Reward minus that of the group's sample with ``train=False`` (ReMax, 2310.10505, alg. 2).

    0 in a group whose greedy sample has no reward, and in that sample itself.
    """
    stats = stats_of(batch)
    greedy = ~batch["train"] & ~torch.isnan(batch["rewards"])
    count = stats.sums(torch.ones_like(stats.rewards), greedy)
    exact = torch.where(greedy, batch["rewards"].double(), 0.0)
    baseline = stats.sums(exact, greedy) / count.clamp(min=1)
    usable = stats.valid & (count > 0)
    return torch.where(usable, stats.rewards - baseline, 0.0).float()


def decoupled_normalised(
    batch: Batch | Columns, weights: tuple[float, ...] = (), total: Total = local_total
) -> Tensor:
    """Each reward normalised in its group, weighted sum, batch normalisation (GDPO, 2601.05242).

    Reads ``reward_parts`` (B, K) instead of ``rewards``; ``weights`` are K numbers, all 1 where
    empty. A part that abstained (NaN) adds 0 and is in no statistics. Exactly 0 where no part of
    the group has a signal. Raises RewardError for another number of weights.
    """
    parts = batch["reward_parts"]
    chosen = weights or (1.0,) * parts.shape[1]
    if len(chosen) != parts.shape[1]:
        raise RewardError(
            f"{len(chosen)} algo.reward_weights for {parts.shape[1]} rewards: give one for each, "
            "in alphabetical order of their names"
        )
    valid = batch["train"] & (batch["response_tokens"] > 0)
    ids, episodes = batch["group_ids"], batch["episode_ids"]
    mixed = torch.zeros(len(parts), dtype=torch.float64)
    signal = torch.zeros(len(parts), dtype=torch.bool)
    for number, weight in enumerate(chosen):
        stats = group_stats(parts[:, number], ids, valid, episodes)
        mixed += weight * _normalised(stats, 1e-6).double()
        signal |= stats.signal
    whole = group_stats(mixed, ids, valid, episodes)
    return torch.where(signal, _whitened(mixed, whole, total), 0.0)


_KINDS: dict[str, Callable[[Batch | Columns, Total], Tensor]] = {
    "grpo": lambda batch, _: group_normalised(batch),
    "dr-grpo": lambda batch, _: group_mean_baseline(batch),
    "rloo": lambda batch, _: leave_one_out(batch),
    "opo": lambda batch, _: length_weighted_baseline(batch),
    "gpg": group_share,
    "maxrl": lambda batch, _: mean_scaled(batch),
    "pass@k": lambda batch, _: best_of_group(batch),
    "remax": lambda batch, _: greedy_baseline(batch),
    "batch": batch_normalised,
    "reward": lambda batch, _: plain_reward(batch),
}


def outcome_advantages(kind: str, batch: Batch | Columns, total: Total = local_total) -> Tensor:
    """The advantages (B,) that go by a method's name, for an option that mixes methods.

    ``kind``: grpo, dr-grpo, rloo, opo, gpg, maxrl, pass@k, remax, batch or reward. Raises
    ValueError for another.
    """
    if kind not in _KINDS:
        raise ValueError(f"unknown advantage '{kind}': take one of {', '.join(_KINDS)}")
    return _KINDS[kind](batch, total)


def _normalised(stats: GroupStats, eps: float) -> Tensor:
    return stats.advantage((stats.rewards - stats.mean) / (stats.std + eps))


def _whitened(values: Tensor, stats: GroupStats, total: Total) -> Tensor:
    """Whitened by the statistics of the counted rows, in every valid row; f32."""
    white = masked_whiten(values, stats.counted, total, where=stats.valid)
    return torch.where(stats.valid, white, 0.0).float()

"""Group statistics against the statistics module; every edge case of the definition."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.ops import (
    group_mean_baseline,
    group_normalised,
    group_stats,
    has_signal,
    leave_one_out,
)

METHODS = (group_mean_baseline, group_normalised, leave_one_out)


def batch_of(rewards, groups, *, train=None, tokens=None, episodes=None):
    size = len(rewards)
    episodes = list(range(size)) if episodes is None else episodes
    train = [True] * size if train is None else train
    tokens = [3] * size if tokens is None else tokens
    return {
        "rewards": torch.tensor(rewards, dtype=torch.float32),
        "group_ids": torch.tensor(groups, dtype=torch.int64),
        "episode_ids": torch.tensor(episodes, dtype=torch.int64),
        "train": torch.tensor(train, dtype=torch.bool),
        "response_tokens": torch.tensor(tokens, dtype=torch.int64),
    }


def plain(method, rewards: list[float]) -> list[float]:
    if len(rewards) < 2 or max(rewards) - min(rewards) <= 1e-6 * max(1, abs(max(rewards))):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    if method is group_mean_baseline:
        return [r - mean for r in rewards]
    if method is group_normalised:
        return [(r - mean) / (statistics.stdev(rewards) + 1e-6) for r in rewards]
    others = [[x for j, x in enumerate(rewards) if j != i] for i in range(len(rewards))]
    return [r - math.fsum(o) / len(o) for r, o in zip(rewards, others, strict=True)]


rewards_and_groups = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.35, -2.5, 1e-7, 1e6, 0.1]),
        st.sampled_from([7, 3, 11, 1 << 40]),
    ),
    max_size=24,
)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None)
@given(rows=rewards_and_groups)
def test_equals_plain_reference_for_uneven_groups_in_any_order(method, rows):
    rewards = torch.tensor([r for r, _ in rows], dtype=torch.float32).tolist()
    groups = [g for _, g in rows]
    got = method(batch_of(rewards, groups))
    assert got.dtype == torch.float32
    assert got.shape == (len(rows),)
    for group in set(groups):
        where = [i for i, g in enumerate(groups) if g == group]
        wanted = plain(method, [rewards[i] for i in where])
        assert got[where].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_equal_rewards_and_a_group_of_one_are_exactly_zero(method):
    rewards = [0.35] * 7 + [5.0] + [0.1 + 0.2, 0.3] + [1e9, 1e9 + 64]
    got = method(batch_of(rewards, [0] * 7 + [1] + [2] * 2 + [3] * 2))
    assert got.tolist() == [0.0] * 12


def test_a_two_pass_float32_std_would_have_failed():
    """The zero rule is needed: this input has a float32 std that is not 0."""
    rewards = torch.full((7,), 0.35)
    centred = rewards - rewards.sum() / 7
    assert float(centred.abs().max()) > 0
    assert group_normalised(batch_of([0.35] * 7, [0] * 7)).abs().max() == 0


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_do_not_count_change_nothing(method):
    alone = method(batch_of([1.0, 0.0, 3.0], [0, 0, 0]))
    more = batch_of(
        [1.0, 99.0, 0.0, math.nan, -99.0, 3.0],
        [0] * 6,
        train=[True, False, True, True, True, True],
        tokens=[1, 5, 2, 4, 0, 9],
    )
    got = method(more)
    torch.testing.assert_close(got[[0, 2, 5]], alone)
    assert got[[1, 3, 4]].tolist() == [0.0] * 3


@pytest.mark.parametrize("method", METHODS)
def test_an_episode_of_several_rows_counts_once(method):
    single = method(batch_of([1.0, 0.0, 0.5], [0, 0, 0]))
    rows = batch_of(
        [0.0, 1.0, 1.0, 1.0, 0.5], [0] * 5, episodes=[4, 9, 9, 9, 2], tokens=[1, 0, 2, 3, 1]
    )
    got = method(rows)
    assert got[1] == 0
    torch.testing.assert_close(got[[2, 3]], single[[0, 0]])
    torch.testing.assert_close(got[[0, 4]], single[[1, 2]])


@settings(max_examples=30, deadline=None)
@given(rows=rewards_and_groups, seed=st.integers(0, 50))
def test_order_of_rows_does_not_matter(rows, seed):
    rewards, groups = [r for r, _ in rows], [g for _, g in rows]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    batch = batch_of(rewards, groups)
    shuffled = {name: column[order] for name, column in batch.items()}
    torch.testing.assert_close(group_normalised(shuffled), group_normalised(batch)[order])


def test_has_signal_agrees_with_the_advantages():
    for rewards in ([0.35] * 7, [1.0], [], [0.0, 1.0], [1e6, 1e6 + 0.5], [1e6, 1e6 + 2], [-5, -5]):
        batch = batch_of(rewards, [0] * len(rewards))
        assert has_signal(rewards) == bool((group_normalised(batch) != 0).any())


def test_group_stats_of_an_empty_batch():
    stats = group_stats(torch.zeros(0), torch.zeros(0).long(), torch.zeros(0).bool())
    assert stats.mean.shape == (0,)

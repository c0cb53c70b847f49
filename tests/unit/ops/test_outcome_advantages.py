"""Advantages by hand: figures that anyone can check, and the edges that other code gets wrong."""

from __future__ import annotations

import math

import pytest
import torch

from rlframe import ops
from rlframe.errors import RewardError
from rlframe.ops.advantages import outcome_advantages
from rlframe_algorithms.policy_gradient import ADVANTAGES, GROUP_RELATIVE

NAN = math.nan
WITH_FUNCTION = [kind for kind in ADVANTAGES if kind != "gdpo"]


def batch_of(rewards, groups, *, train=None, tokens=None, episodes=None, parts=None):
    size = len(rewards)
    columns = {
        "rewards": torch.tensor(rewards, dtype=torch.float32),
        "group_ids": torch.tensor(groups),
        "episode_ids": torch.tensor(list(range(size)) if episodes is None else episodes),
        "train": torch.tensor([True] * size if train is None else train),
        "response_tokens": torch.tensor([3] * size if tokens is None else tokens),
    }
    if parts is not None:
        columns["reward_parts"] = torch.tensor(parts, dtype=torch.float32)
    return columns


def advantage(kind, batch):
    if kind == "gdpo":
        return ops.decoupled_normalised({**batch, "reward_parts": batch["rewards"][:, None]})
    return outcome_advantages(kind, batch)


def test_opo_weighs_the_baseline_by_sampled_tokens():
    batch = batch_of([1.0, 0.0, 0.5], [0] * 3, tokens=[1, 5, 2])
    baseline = (1 * 1.0 + 5 * 0.0 + 2 * 0.5) / 8
    wanted = [1 - baseline, -baseline, 0.5 - baseline]
    assert ops.length_weighted_baseline(batch).tolist() == pytest.approx(wanted)


def test_opo_takes_the_length_of_the_whole_episode():
    rows = batch_of([1.0, 0.0, 0.0], [0] * 3, tokens=[2, 3, 4], episodes=[7, 8, 8])
    whole = batch_of([1.0, 0.0], [0] * 2, tokens=[2, 7])
    got, wanted = ops.length_weighted_baseline(rows), ops.length_weighted_baseline(whole)
    assert got[[0, 1]].tolist() == pytest.approx(wanted.tolist())
    assert got[1] == got[2]


def test_gpg_counts_groups_with_signal_not_rewards_above_zero():
    batch = batch_of([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2, 3, 3])
    got = ops.group_share(batch)
    alpha = 8 / 2
    assert got.tolist() == pytest.approx([alpha * 0.5, -alpha * 0.5, *[0.0] * 6])


def test_gpg_counts_over_all_ranks():
    parts = [batch_of([1.0, 0.0], [0, 0]), batch_of([1.0, 1.0], [1, 1])]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    whole["episode_ids"] = torch.arange(4)
    totals = iter([2.0, 4.0])
    got = ops.group_share(parts[0], lambda values, mask: torch.tensor(next(totals)))
    assert got.tolist() == pytest.approx(ops.group_share(whole)[:2].tolist())


def test_pass_at_k_rewards_the_single_best():
    assert ops.best_of_group(batch_of([0.2, 0.9, 0.5], [0] * 3)).tolist() == pytest.approx(
        [0.0, 0.4, 0.0]
    )
    assert ops.best_of_group(batch_of([1.0, 1.0, 0.0], [0] * 3)).tolist() == [0.0] * 3
    assert ops.best_of_group(batch_of([-1.0, -3.0], [0] * 2)).tolist() == [2.0, 0.0]


def test_pass_at_k_gives_all_rows_of_the_best_episode_the_same():
    batch = batch_of([1.0, 1.0, 0.25], [0] * 3, episodes=[5, 5, 6])
    assert ops.best_of_group(batch).tolist() == [0.75, 0.75, 0.0]


def test_maxrl():
    assert ops.mean_scaled(batch_of([1.0, 0.0, 0.0, 0.0], [0] * 4)).tolist() == pytest.approx(
        [3.0, -1.0, -1.0, -1.0]
    )
    assert ops.mean_scaled(batch_of([1.0, -1.0], [0] * 2)).tolist() == [0.0, 0.0]
    with pytest.raises(RewardError, match="negative"):
        ops.mean_scaled(batch_of([0.0, -1.0], [0] * 2))


def test_remax():
    batch = batch_of(
        [1.0, 0.25, 0.5, 1.0, NAN, 0.5],
        [0, 0, 0, 1, 1, 2],
        train=[True, True, False, True, False, True],
    )
    assert ops.greedy_baseline(batch).tolist() == pytest.approx([0.5, -0.25, 0, 0, 0, 0])


def test_the_greedy_response_counts_even_where_it_is_empty():
    batch = batch_of([1.0, 0.25], [0, 0], train=[True, False], tokens=[3, 0])
    assert ops.greedy_baseline(batch).tolist() == [0.75, 0.0]


def test_gdpo_by_hand():
    parts = [[1.0, 0.0], [0.0, 10.0], [1.0, 0.0], [0.0, 0.0]]
    batch = batch_of([0.0] * 4, [0, 0, 1, 1], parts=parts)
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    five = 5 / (math.sqrt(50) + 1e-6)
    mixed = [2 * half - five, -2 * half + five, 2 * half, -2 * half]
    spread = math.sqrt(sum(x * x for x in mixed) / 4 + 1e-8)
    got = ops.decoupled_normalised(batch, (2.0, 1.0))
    assert got.tolist() == pytest.approx([x / spread for x in mixed], rel=1e-5)


def test_gdpo_takes_no_statistics_of_a_reward_that_abstained():
    parts = [[1.0, NAN], [0.0, 1.0], [0.5, 0.0]]
    got = ops.decoupled_normalised(batch_of([0.0] * 3, [0] * 3, parts=parts))
    assert torch.isfinite(got).all()
    first = ops.decoupled_normalised(batch_of([0.0] * 3, [0] * 3, parts=[[1.0], [0.0], [0.5]]))
    assert got[0] > 0
    assert first[0] > 0


def test_gdpo_wants_one_weight_a_reward():
    batch = batch_of([0.0] * 2, [0] * 2, parts=[[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(RewardError, match="1 algo.reward_weights for 2 rewards"):
        ops.decoupled_normalised(batch, (1.0,))


def test_batch_normalisation_counts_each_episode_once():
    once = ops.batch_normalised(batch_of([1.0, 0.0, 0.5], [0, 1, 1]))
    twice = ops.batch_normalised(
        batch_of([1.0, 1.0, 0.0, 0.5], [0, 0, 1, 1], episodes=[3, 3, 4, 5])
    )
    torch.testing.assert_close(twice[[0, 2, 3]], once)
    torch.testing.assert_close(twice[1], once[0])


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_an_empty_response_moves_nobody(kind):
    alone = batch_of([1.0, 0.0, 0.25], [0] * 3)
    more = batch_of([1.0, 0.0, 0.25, 9.0], [0] * 4, tokens=[3, 3, 3, 0])
    got = advantage(kind, more)
    torch.testing.assert_close(got[:3], advantage(kind, alone))
    assert got[3] == 0


@pytest.mark.parametrize("kind", GROUP_RELATIVE)
def test_group_of_one_and_equal_rewards_are_exactly_zero(kind):
    batch = batch_of([0.35] * 7 + [5.0, 1.0, 0.0], [0] * 7 + [1] + [2] * 2)
    got = advantage(kind, batch)
    assert got[:8].tolist() == [0.0] * 8
    assert got[8] > 0


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_order_and_interleaving_change_nothing(kind):
    batch = batch_of(
        [1.0, 0.0, 0.5, 0.25, 0.75, 0.1],
        [4, 9, 4, 9, 9, 4],
        train=[True, True, True, True, True, False],
        tokens=[1, 2, 3, 4, 5, 6],
    )
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    shuffled = {name: column[order] for name, column in batch.items()}
    torch.testing.assert_close(advantage(kind, shuffled), advantage(kind, batch)[order])


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_no_rows_give_no_advantages(kind):
    none = {name: column[:0] for name, column in batch_of([1.0], [0]).items()}
    assert advantage(kind, none).shape == (0,)


def test_every_option_has_its_function():
    batch = batch_of([1.0, 0.0], [0, 0])
    for kind in WITH_FUNCTION:
        assert outcome_advantages(kind, batch).shape == (2,)
    with pytest.raises(ValueError, match="unknown advantage 'gppo'"):
        outcome_advantages("gppo", batch)

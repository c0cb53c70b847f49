"""Which tokens the covariance methods choose: by hand, and whatever the order of the rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe import ops

NAN = float("nan")


def test_covariance_is_centred_over_the_tokens_that_count():
    logp = torch.tensor([[-1.0, -3.0, NAN], [-2.0, NAN, NAN]])
    advantages = torch.tensor([[1.0, 0.0, NAN], [-1.0, NAN, NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert ops.token_covariance(logp, advantages, mask).tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("share", "tokens", "count"),
    [(2e-4, 10_000, 2), (2e-4, 14_999, 2), (2e-4, 10, 1), (0.29, 100, 29), (0, 9, 0), (1, 0, 0)],
)
def test_a_share_of_the_tokens(share, tokens, count):
    mask = torch.zeros(2, 8000, dtype=torch.bool)
    mask.view(-1)[:tokens] = True
    assert ops.share_of_tokens(mask, share) == count


def test_keys_differ_by_episode_row_position_and_seed():
    ids, starts = torch.arange(50), torch.full((50,), 3)
    keys = ops.token_keys(ids, starts, 40)
    assert ((keys >= 0) & (keys < 1)).all()
    assert len(keys.flatten().unique()) == 2000
    assert keys.mean().item() == pytest.approx(0.5, abs=0.02)
    assert (ops.token_keys(ids, starts + 1, 40) != keys).all()
    assert (ops.token_keys(ids, starts, 40, seed=1) != keys).all()
    assert torch.equal(ops.token_keys(ids[7:9], starts[7:9], 20), keys[7:9, :20])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5), st.integers(0, 12))
def test_the_choice_follows_its_rows(seed, rows, width, number):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 3, (rows, width), generator=generator).double()
    candidates = torch.rand(rows, width, generator=generator) < 0.6
    ids, starts = torch.randperm(1000, generator=generator)[:rows], torch.ones(rows)
    order = torch.randperm(rows, generator=generator)
    keys = ops.token_keys(ids, starts.long(), width)
    for chosen, moved in (
        (
            ops.draw_tokens(candidates, number, keys),
            ops.draw_tokens(candidates[order], number, keys[order]),
        ),
        (
            ops.top_tokens(values, candidates, number, keys),
            ops.top_tokens(values[order], candidates[order], number, keys[order]),
        ),
    ):
        assert torch.equal(moved, chosen[order])
        assert int(chosen.sum()) == min(number, int(candidates.sum()))
        assert not (chosen & ~candidates).any()


def test_the_largest_are_chosen():
    values = torch.tensor([[5.0, 1.0, 4.0], [9.0, -2.0, 4.0]]).double()
    candidates = torch.tensor([[True, True, True], [False, True, True]])
    keys = ops.token_keys(torch.tensor([1, 2]), torch.tensor([1, 1]), 3)
    chosen = ops.top_tokens(values, candidates, 3, keys)
    assert chosen.tolist() == [[True, False, True], [False, False, True]]
    one_of_two = ops.top_tokens(values, candidates, 2, keys)
    assert one_of_two[0, 0]
    assert one_of_two[0, 2] == (keys[0, 2] < keys[1, 2])


def test_every_candidate_is_drawn_alike():
    candidates = torch.ones(1, 4, dtype=torch.bool)
    hits = torch.zeros(4)
    for episode in range(2000):
        keys = ops.token_keys(torch.tensor([episode]), torch.tensor([5]), 4)
        hits += ops.draw_tokens(candidates, 1, keys)[0]
    assert hits.min() > 430


def test_the_penalty_is_the_distance_and_rounding_has_no_say():
    logp = torch.tensor([-1.5, -0.5, -1.0 + 1e-7, -1.0005], requires_grad=True)
    loss = ops.absolute_kl(logp, torch.full((4,), -1.0))
    torch.testing.assert_close(loss, (logp + 1).abs())
    loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-1, 1, 0, -0.5], abs=1e-3)

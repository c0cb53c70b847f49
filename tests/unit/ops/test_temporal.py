"""GAE against the definition in plain Python, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe import ops

NAN = float("nan")


def by_definition(rewards, values, mask, gamma, lam):
    """A_t as the sum over k of (gamma lam)^k delta_{t+k}, over the True slots of one row."""
    slots = [t for t, inside in enumerate(mask) if inside]
    v = [values[t] for t in slots] + [0.0]
    deltas = [rewards[t] + gamma * v[n + 1] - v[n] for n, t in enumerate(slots)]
    out = [0.0] * len(mask)
    for n, t in enumerate(slots):
        out[t] = math.fsum((gamma * lam) ** k * d for k, d in enumerate(deltas[n:]))
    return out


def check(rewards, values, mask, gamma, lam):
    advantages, returns = ops.gae(rewards, values, mask, gamma, lam)
    lams = lam.tolist() if isinstance(lam, torch.Tensor) else [lam] * len(mask)
    for row in range(len(mask)):
        wanted = by_definition(
            rewards[row].tolist(), values[row].tolist(), mask[row].tolist(), gamma, lams[row]
        )
        assert advantages[row].tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)
        back = torch.where(mask[row], advantages[row] + values[row], 0.0)
        assert returns[row].tolist() == pytest.approx(back.tolist(), rel=1e-6, abs=1e-6)


def random_batch(seed, rows, width, inside):
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(2)]
    return *draw, torch.rand(rows, width, generator=generator) < inside


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 4),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)
def test_it_is_the_definition(seed, rows, width, inside, gamma, lam):
    check(*random_batch(seed, rows, width, inside), gamma, lam)


@pytest.mark.parametrize("width", [63, 64, 65, 200])
@pytest.mark.parametrize("inside", [0.8, 1.0])
def test_longer_than_a_tile(width, inside):
    check(*random_batch(1, 3, width, inside), 0.99, 0.95)


def test_a_lambda_for_each_row():
    check(*random_batch(2, 3, 70, 0.9), 0.97, torch.tensor([0.0, 0.5, 1.0]))


def test_by_hand():
    rewards = torch.tensor([[0.0, 7.0, 1.0]])
    values = torch.tensor([[0.5, 9.0, 0.25]])
    mask = torch.tensor([[True, False, True]])
    advantages, returns = ops.gae(rewards, values, mask, 0.9, 0.5)
    last = 1 - 0.25
    first = 0.9 * 0.25 - 0.5 + 0.45 * last
    assert advantages[0].tolist() == pytest.approx([first, 0, last])
    assert returns[0].tolist() == pytest.approx([first + 0.5, 0, 1.0])


@pytest.mark.parametrize("holes", [[1, 1, 0, 1, 0], [0, 1, 1, 0, 0]])
def test_what_stands_in_masked_slots_is_never_read(holes):
    mask = torch.tensor([holes], dtype=torch.bool)
    numbers = torch.arange(5.0)[None] / 7
    clean = ops.gae(numbers, numbers, mask)
    dirty = torch.where(mask, numbers, NAN)
    for got, wanted in zip(ops.gae(dirty, dirty, mask), clean, strict=True):
        assert torch.equal(got, wanted)


def test_lambda_one_is_the_return_minus_the_value():
    rewards, values, mask = random_batch(3, 4, 30, 0.7)
    _, returns = ops.gae(rewards, values, mask, 1.0, 1.0)
    kept = torch.where(mask, rewards, 0.0)
    to_go = kept.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(returns, torch.where(mask, to_go, 0.0))


def test_float32_is_as_good_as_its_input():
    rewards, values, mask = random_batch(4, 2, 3000, 0.9)
    exact = ops.gae(rewards.float().double(), values.float().double(), mask, 1.0, 1.0)[0]
    got = ops.gae(rewards.float(), values.float(), mask, 1.0, 1.0)[0]
    assert got.dtype == torch.float32
    assert torch.equal(got, exact.float())


def test_the_outcome_stands_at_the_last_sampled_token():
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    got = ops.outcome_rewards(torch.tensor([1.0, 2.0, 3.0]), mask)
    assert got.tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    assert ops.outcome_rewards(torch.ones(2), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)


def test_explained_variance():
    returns = torch.tensor([[1.0, 3.0, NAN]])
    mask = torch.tensor([[True, True, False]])
    assert ops.explained_variance(returns, returns, mask) == 1
    assert ops.explained_variance(returns, torch.full_like(returns, 5.0), mask) == 0
    assert ops.explained_variance(returns, torch.tensor([[3.0, 1.0, 0.0]]), mask) == -3
    assert ops.explained_variance(torch.ones(1, 3), returns, mask) == 0
    assert ops.explained_variance(returns, returns, torch.zeros_like(mask)) == 0

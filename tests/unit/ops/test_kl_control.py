"""KL in the reward and the controllers of its weight."""

from __future__ import annotations

import pytest
import torch

from rlframe.ops import KLController, kl_reward


def test_a_fixed_weight_stays():
    control = KLController(0.3)
    assert [control.update(kl, 64) for kl in (0.0, 1e9, 5.0)] == [0.3] * 3


@pytest.mark.parametrize(
    ("kl", "factor"), [(6.0, 1), (6.6, 1 + 0.1 * 0.01), (60, 1.002), (0, 0.998), (5.4, 0.999)]
)
def test_an_adaptive_weight_follows_the_clipped_error(kl, factor):
    control = KLController(0.2, target=6.0, horizon=10_000)
    assert control.update(kl, 100) == pytest.approx(0.2 * factor, rel=1e-12)
    assert control.coef == pytest.approx(0.2 * factor, rel=1e-12)


def test_it_never_becomes_a_bonus():
    assert KLController(1.0, target=1.0, horizon=10).update(0.0, 1000) == 0.0


def test_it_converges_to_the_target():
    """A policy whose KL is 2 / coef: the weight settles where that is the target."""
    control = KLController(0.1, target=4.0, horizon=100)
    for _ in range(2000):
        control.update(2 / control.coef, 10)
    assert control.coef == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_penalty_is_exact_in_expectation_and_has_the_right_sign(estimator):
    """Enumerated over a vocabulary of four: E[reward] = -coef KL; k2 is biased, and negative."""
    logits = torch.tensor([0.2, 1.5, -0.7, 0.4], dtype=torch.float64)
    ref = torch.tensor([0.1, 0.3, 0.5, -1.0], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    rewards = kl_reward(logp[None], ref[None], mask, 0.7, estimator)[0]
    kl = (logp.exp() * (logp - ref)).sum()
    got = (logp.exp() * rewards).sum()
    assert got < 0
    if estimator != "k2":
        assert float(got) == pytest.approx(float(-0.7 * kl), rel=1e-12)


def test_a_step_away_from_the_reference_earns_less():
    """Finite difference of the exact expectation along a direction in which the KL grows."""
    ref = torch.tensor([0.1, 0.3, 0.5, -1.0], dtype=torch.float64).log_softmax(0)
    away = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)

    def earned(step: float) -> float:
        logp = (ref + step * away).log_softmax(0)
        return float((logp.exp() * kl_reward(logp[None], ref[None], mask, 1.0)[0]).sum())

    assert earned(0.0) == pytest.approx(0.0, abs=1e-12)
    assert earned(0.2) < earned(0.1) < 0
    assert earned(-0.2) < earned(-0.1) < 0


def test_masked_slots_earn_nothing():
    nan = float("nan")
    logp, ref = torch.tensor([[-1.0, nan, -2.0]]), torch.tensor([[-2.0, -1.0, nan]])
    mask = torch.tensor([[True, False, False]])
    assert kl_reward(logp, ref, mask, 0.5).tolist() == [[-0.5, 0.0, 0.0]]

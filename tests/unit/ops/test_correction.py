"""Weights between trainer and sampler."""

from __future__ import annotations

import math

import pytest
import torch

from rlframe.ops.correction import rollout_inside, rollout_log_weight, rollout_weight

OLD = torch.tensor([[1.0, 2.0, 4.0, 0.25]]).log()
ROLLOUT = torch.ones(1, 4).log()
MASK = torch.tensor([[True, True, False, True]])


def test_token_weights():
    log_w = rollout_log_weight(OLD, ROLLOUT, MASK)
    assert rollout_weight(log_w, 2.0)[0].tolist() == pytest.approx([1, 2, 2, 0.25])
    assert rollout_inside(log_w, 0.5, 2.0).tolist() == [[True, True, False, False]]
    assert rollout_inside(log_w, 0.0, 3.0).tolist() == [[True, True, False, True]]


def test_sequence_weights_are_products_over_the_sampled_tokens():
    log_w = rollout_log_weight(OLD, ROLLOUT, MASK, "sequence")
    assert log_w.exp()[0].tolist() == pytest.approx([0.5] * 4)
    assert rollout_inside(log_w, 0.5, 5.0).all()
    assert not rollout_inside(log_w, 0.51, 5.0).any()


def test_extremes_stay_finite_and_the_cap_holds():
    log_w = rollout_log_weight(torch.tensor([[0.0]]), torch.tensor([[-1e4]]), MASK[:, :1])
    assert rollout_weight(log_w, 2.0).item() == pytest.approx(2.0)
    assert math.isfinite(log_w.exp().item())


def test_no_gradient():
    old = OLD.clone().requires_grad_()
    assert not rollout_log_weight(old, ROLLOUT, MASK).requires_grad


def test_an_unknown_level():
    with pytest.raises(ValueError, match="token or sequence"):
        rollout_log_weight(OLD, ROLLOUT, MASK, "word")

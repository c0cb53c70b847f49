"""The critic's loss, by hand."""

from __future__ import annotations

import pytest
import torch

from rlframe import ops


def test_the_worse_of_both_errors_counts():
    values = torch.tensor([[1.0, 0.2, -1.0]], requires_grad=True)
    old, returns = torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 0.0]])
    loss = ops.clipped_value_loss(values, old, returns, 0.5)
    assert loss[0].tolist() == pytest.approx([0.125, 0.32, 0.5])
    loss.sum().backward()
    assert values.grad[0].tolist() == pytest.approx([0, -0.8, -1.0])
    got = ops.value_clip_fraction(values, old, returns, 0.5)
    assert got.tolist() == [[1, 0, 0]]


def test_without_a_clip_it_is_half_the_squared_error():
    values, returns = torch.tensor([[3.0]]), torch.tensor([[1.0]])
    assert ops.clipped_value_loss(values, torch.zeros(1, 1), returns, None).item() == 2
    assert ops.value_clip_fraction(values, torch.zeros(1, 1), returns, None).item() == 0

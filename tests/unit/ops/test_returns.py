"""Reward-to-go against a plain loop, tools' tokens skipped."""

from __future__ import annotations

import pytest
import torch

from rlframe.ops import reward_to_go


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_equals_a_plain_loop(gamma):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(6, 9, generator=generator)
    mask = torch.rand(6, 9, generator=generator) > 0.4
    mask[0] = False
    got = reward_to_go(torch.where(mask, rewards, torch.nan), mask, gamma)
    for row in range(6):
        known = rewards[row][mask[row]].double().tolist()
        wanted = [
            sum(gamma ** (k - t) * known[k] for k in range(t, len(known)))
            for t in range(len(known))
        ]
        assert got[row][mask[row]].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert (got[~mask] == 0).all()
    assert got.dtype == torch.float32

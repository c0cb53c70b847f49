"""DAPO's soft punishment, and episode sums."""

from __future__ import annotations

import pytest
import torch

from rlframe.ops import episode_most, episode_sums, overlong_penalty


def test_the_papers_curve():
    lengths = torch.tensor([0, 16384, 16385, 18432, 20480, 30000])
    got = overlong_penalty(lengths, 20480, 4096)
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx([0, 0, -1 / 4096, -0.5, -1, -1])


def test_limits_of_each_row_and_no_buffer():
    lengths, limit = torch.tensor([5, 5, 6]), torch.tensor([10, 5, 5])
    assert overlong_penalty(lengths, limit, 0).tolist() == [0, 0, -1]
    half = overlong_penalty(lengths, limit.double(), 0.5 * limit.double())
    assert half.tolist() == pytest.approx([0, -1, -1])


def test_rows_of_an_episode_share_their_sum():
    most = episode_most(torch.tensor([3, 4, 5]), torch.tensor([9, 2, 9]))
    assert most.tolist() == [5, 4, 5]
    got = episode_sums(torch.tensor([3, 4, 5]), torch.tensor([9, 2, 9]))
    assert got.tolist() == [8, 4, 8]
    assert episode_sums(torch.zeros(0), torch.zeros(0).long()).shape == (0,)

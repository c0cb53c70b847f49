"""The sampler against exact distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlframe.requests import Sampling
from rlframe.testing.rollout_reference import truncated
from rlframe_plugins.rollouts.torch.sampling import Draw, sample, uniforms

CPU = torch.device("cpu")


def draw(logits_BV, settings, uniform):
    count, vocab = logits_BV.shape
    padded = torch.full((-(-vocab // 64) * 64, count), -torch.inf)
    padded[:vocab] = logits_BV.t()
    return sample(padded, Draw.of(settings, CPU), uniform)


def test_uniforms_are_a_function_of_seed_and_count():
    seeds = np.array([1, 2, 1], np.uint64)
    values = uniforms(seeds, np.array([5, 5, 5]))
    assert values[0] == values[2] != values[1]
    assert uniforms(seeds, np.array([5, 6, 6]))[2] == uniforms(seeds[:1], np.array([6]))[0]


def test_uniforms_are_uniform_over_counts_and_over_neighbouring_seeds():
    for seeds, counts in (
        (np.zeros(20000, np.uint64), np.arange(20000)),
        (np.arange(20000, dtype=np.uint64), np.zeros(20000, np.int64)),
    ):
        values = uniforms(seeds, counts)
        assert values.min() >= 0
        assert values.max() < 1
        histogram = np.histogram(values, 20, (0, 1))[0]
        assert (np.abs(histogram - 1000) < 160).all()
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("vocab", [5, 64, 200, 1000])
@pytest.mark.parametrize(
    "setting",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(top_k=3),
        Sampling(top_p=0.6, temperature=1.5),
        Sampling(min_p=0.3),
        Sampling(top_k=4, top_p=0.8, min_p=0.05, temperature=2.0),
        Sampling(top_k=100000),
    ],
)
def test_a_grid_of_uniforms_draws_the_exact_distribution(vocab, setting):
    count = 4000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    exact = truncated(logits[None].double(), setting)[0].softmax(0)
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, logprobs = draw(logits.expand(count, -1), [setting] * count, grid)
    shares = torch.bincount(tokens, minlength=vocab) / count
    assert (shares - exact).abs().max() <= 1.5 / count
    torch.testing.assert_close(logprobs.double(), exact[tokens].log(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_without_probability_is_never_drawn(uniform):
    logits = torch.full((1, 300), -torch.inf)
    logits[0, [70, 71, 200]] = torch.tensor([0.0, 3.0, -60.0])
    token, logprob = draw(logits, [Sampling()], torch.tensor([uniform], dtype=torch.float64))
    assert int(token) in (70, 71, 200)
    assert torch.isfinite(logprob).all()


def test_rows_of_different_settings_do_not_touch_each_other():
    settings = [
        Sampling(temperature=0),
        Sampling(temperature=0.3, top_k=2),
        Sampling(),
        Sampling(top_p=0.5),
        Sampling(temperature=0, top_k=5, min_p=0.9),
    ]
    logits = torch.randn(5, 150, generator=torch.Generator().manual_seed(0))
    noise = torch.tensor([0.1, 0.9, 0.4, 0.7, 0.2], dtype=torch.float64)
    tokens, logprobs = draw(logits, settings, noise)
    for i, setting in enumerate(settings):
        token, logprob = draw(logits[i : i + 1], [setting], noise[i : i + 1])
        assert int(tokens[i]) == int(token)
        assert float(logprobs[i]) == pytest.approx(float(logprob), abs=1e-6)
    assert tokens[0] == logits[0].argmax()
    assert float(logprobs[4]) == pytest.approx(float(logits[4].log_softmax(0).max()), abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_column_says_so(bad):
    logits = torch.zeros(2, 80)
    logits[1, 7] = bad
    _, logprobs = draw(logits, [Sampling()] * 2, torch.tensor([0.5, 0.5]).double())
    assert torch.isfinite(logprobs).tolist() == [True, False]

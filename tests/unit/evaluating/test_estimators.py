"""Against closed forms and against counting every subset."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.evaluating.estimators import estimate, majority_at_k, pass_at_k, wilson


@pytest.mark.parametrize(
    ("n", "correct", "k", "wanted"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (10, 3, 2, 1 - (7 * 6) / (10 * 9)),
        (10, 3, 8, 1.0),
        (4, 0, 4, 0.0),
        (200, 1, 100, 0.5),
    ],
)
def test_pass_at_k_closed_forms(n, correct, k, wanted):
    assert pass_at_k(n, correct, k) == pytest.approx(wanted, abs=1e-12)


@given(n=st.integers(1, 7), data=st.data())
def test_pass_at_k_counts_subsets(n, data):
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    right = [True] * correct + [False] * (n - correct)
    subsets = list(combinations(right, k))
    wanted = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(wanted, abs=1e-12)


def test_pass_at_k_is_unbiased():
    """The mean over binomial draws is 1 - (1 - p)^k."""
    n, k, p = 12, 3, 0.23
    mean = sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
    )
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n, correct, k):
    with pytest.raises(ValueError, match="within n=3"):
        pass_at_k(n, correct, k)


def vote(subset, share) -> float:
    counts = Counter(subset)
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    return sum(share[answer] for answer in winners) / len(winners)


@given(answers=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), data=st.data())
def test_majority_counts_subsets(answers, data):
    share = {answer: data.draw(st.sampled_from([0.0, 1.0])) for answer in "abcd"}
    k = data.draw(st.integers(1, len(answers)))
    subsets = list(combinations(answers, k))
    wanted = sum(vote(subset, share) for subset in subsets) / len(subsets)
    found = majority_at_k(answers, [share[answer] for answer in answers], k)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_majority_of_all_and_of_one():
    answers, right = ["7", "7", "3", "5"], [1, 1, 0, 0]
    assert majority_at_k(answers, right, 4) == 1.0
    assert majority_at_k(answers, right, 1) == pytest.approx(0.5)
    assert majority_at_k(["1", "2"], [1, 0], 2) == pytest.approx(0.5), "a tie shares the vote"
    assert majority_at_k(["1", "1"], [1, 0], 2) == pytest.approx(0.5), "one answer, half right"


def test_majority_of_many_samples_is_exact():
    """Two answers, 33 of 64 right: k = 3 wins with two or three of them (hypergeometric)."""
    answers = ["a"] * 33 + ["b"] * 31
    wins = math.comb(33, 2) * 31 + math.comb(33, 3)
    found = majority_at_k(answers, [a == "a" for a in answers], 3)
    assert found == pytest.approx(wins / math.comb(64, 3), rel=1e-12)


def test_majority_refuses_more_than_there_is():
    with pytest.raises(ValueError, match="within n=2"):
        majority_at_k(["a", "b"], [1, 0], 3)


def test_wilson_against_published_values():
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(29, 29)[1] == 1.0


def test_one_value_a_prompt_of_zeros_and_ones_takes_wilson():
    found = estimate([1.0] * 81 + [0.0] * 182)
    assert found.method == "wilson"
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert found.prompts == 263


def test_bootstrap_agrees_with_the_normal_interval():
    values = np.linspace(0, 1, 401)
    found = estimate(values.tolist(), seed=3)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert found.method == "bootstrap"
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.003)
    assert estimate(values.tolist(), seed=3) == found


def test_an_interval_needs_values():
    with pytest.raises(ValueError, match="nothing to estimate"):
        estimate([])

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row
from rlframe_plugins.rewards.number import NumberReward, last_number


def score(answer, texts, **options):
    reward = NumberReward(NumberReward.Config(**options))
    episodes = [Episode(Request((1,)), [], "stop", text) for text in texts]
    return asyncio.run(reward.score(Row((1,), {"answer": answer}), episodes))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("It is 1,024.", "1024"),
        ("1,234,567.50 dollars", "1234567.50"),
        ("first 3, then 4", "4"),
        ("3,4", "4"),
        ("1,2345", "2345"),
        ("x=-7", "-7"),
        ("10-3", "3"),
        ("(2)-3", "3"),
        ("10 - 3 is \u22127", "-7"),
        ("$-0.5$", "-0.5"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("+3", "3"),
        ("2e3", "2000"),
        ("1.5E-2", "0.015"),
        ("3em", "3"),
        ("#### 72", "72"),
        ("50%", "50"),
        ("1" * 5000, "1" * 5000),
        ("12.", "12"),
    ],
)
def test_the_last_number_is_read(text, number):
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "-", "...", ",,"])
def test_no_number_is_none(text):
    assert last_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.text("ab .=", max_size=5))
def test_every_decimal_is_read_back(number, before):
    assert last_number(f"{before} {number:,f}") == number
    assert last_number(f"{before} {number:f}") == number


def test_values_are_compared_and_not_texts():
    assert score("1.0", ["1", "1.00", "01", "1.01", "one", ""]) == [1, 1, 1, 0, 0, 0]
    assert score(2, ["so 2"]) == [1]
    assert score("Tom has 3 and 4, so 7. #### 7", ["7", "3"]) == [1, 0]
    assert score("0.1", ["0.1000000000000000000001"]) == [0]


def test_a_tolerance_is_a_share():
    assert score("200", ["201", "202", "203", "198", "x"], tolerance=0.01) == [1, 1, 0, 1, 0]
    assert score("0", ["0", "0.001"], tolerance=0.5) == [1, 0]
    assert score("-200", ["-201", "201", "1e9999"], tolerance=0.01) == [1, 0, 0]


def test_an_answer_without_a_number_is_an_error():
    with pytest.raises(RewardError, match="the answer 'none' holds no number"):
        score("none", ["1"])
    with pytest.raises(ValueError, match="tolerance must be at least 0"):
        NumberReward.Config(tolerance=-1)

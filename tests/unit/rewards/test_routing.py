from __future__ import annotations

import asyncio

import pytest

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row
from rlframe.rewards import FunctionReward, Scorer, WeightedReward


def part(label: str, value: float, when: dict | None = None, weight: float = 1.0):
    return WeightedReward(label, FunctionReward(lambda response: value, label), weight, when or {})


def score(parts, columns, **options):
    one = Episode(Request((1,)), [], "stop", "x")
    scorer = Scorer(parts, **options)
    kept = asyncio.run(scorer.score(Row((1,), columns, source="a:1"), [one]))
    return one.reward if kept else scorer.take_fault()


MATH = part("math", 1, {"data_source": ["gsm8k", "math"]}, 2.0)
CODE = part("code", 5, {"data_source": "code"})
LEVEL = part("level", 7, {"extra_info.level": 3, "data_source": "math"})
ALL = part("all", 0.5)


@pytest.mark.parametrize(
    ("columns", "reward"),
    [
        ({"data_source": "gsm8k"}, 2.5),
        ({"data_source": "code"}, 5.5),
        ({"data_source": "other"}, 0.5),
    ],
)
def test_a_row_is_scored_by_the_parts_that_are_for_it(columns, reward):
    assert score([MATH, CODE, ALL], columns) == reward


def test_every_column_of_when_must_fit_and_dots_reach_inside():
    columns = {"data_source": "math", "extra_info": {"level": 3}}
    assert score([MATH, LEVEL], columns) == 9
    assert score([MATH, LEVEL], columns | {"extra_info": {"level": 2}}) == 2


def test_a_row_that_is_for_nobody_is_an_error_or_left_out():
    with pytest.raises(RewardError, match=r"a:1: no reward is for this row, by 'when': 'math'"):
        score([MATH, CODE], {"data_source": "other"})
    error = score([MATH, CODE], {"data_source": "other"}, on_error="skip")
    assert "no reward is for this row" in str(error)


def test_a_column_of_when_that_is_not_there_is_named():
    with pytest.raises(RewardError, match=r"'math': when: unknown column 'data_source'.*Did you"):
        score([MATH], {"data_sourc": "math"})


def test_a_part_reads_only_the_columns_of_its_own_rows():
    needs = WeightedReward("n", FunctionReward(lambda response, n: n, "n"), 1, {"kind": "n"})
    scorer = Scorer([needs, ALL])
    scorer.check({"kind": "other"})
    scorer.check({"kind": "n", "n": 1})
    with pytest.raises(RewardError, match="has the parameter 'n'"):
        scorer.check({"kind": "n"})
    assert score([needs, ALL], {"kind": "other"}) == 0.5


def test_a_nested_column_is_offered_by_its_path():
    reward = WeightedReward("f", FunctionReward(lambda response, ground_truth: 1, "f"))
    with pytest.raises(RewardError) as caught:
        Scorer([reward]).check({"prompt": "p", "reward_model": {"ground_truth": "3"}})
    hint = "data.columns.ground_truth=reward_model.ground_truth"
    assert str(caught.value).endswith(hint)

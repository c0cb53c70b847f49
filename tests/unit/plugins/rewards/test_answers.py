from __future__ import annotations

import pytest

from rlframe.errors import RewardError
from rlframe_plugins.rewards.answers import answer_of, check_answer_column


@pytest.mark.parametrize(
    "columns",
    [
        {"answer": " 2 "},
        {"solution": 2, "ground_truth": 3},
        {"ground_truth": "2", "reward_model": {"ground_truth": 3}},
        {"reward_model": {"style": "rule", "ground_truth": "2"}},
    ],
)
def test_auto_takes_the_usual_names_in_order(columns):
    assert answer_of(columns, "auto", "r") == "2"
    check_answer_column(list(columns), "auto", "r")


def test_a_column_is_named_with_dots():
    columns = {"extra_info": {"answer": "5"}, "answer": "4"}
    assert answer_of(columns, "extra_info.answer", "r") == "5"
    check_answer_column(list(columns), "extra_info.answer", "r")


@pytest.mark.parametrize("column", ["auto", "label", "extra_info.label"])
def test_what_is_not_there_is_named(column):
    columns = {"prompt": "p", "extra_info": {"index": 3}}
    with pytest.raises(RewardError, match=r"reward 'r' compares with.*extra_info\.index"):
        answer_of(columns, column, "r")
    with pytest.raises(RewardError, match=r"it has: prompt\. Set the reward's column"):
        check_answer_column(["prompt"], column, "r")


@pytest.mark.parametrize("value", [None, {"a": 1}, [1]])
def test_what_is_no_answer_is_refused(value):
    with pytest.raises(RewardError, match="neither text nor a number"):
        answer_of({"answer": value}, "auto", "r")

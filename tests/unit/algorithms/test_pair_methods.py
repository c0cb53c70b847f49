"""Preference pairs are read from the columns that TRL and verl name."""

from __future__ import annotations

import pytest

from rlframe import DataError
from rlframe.requests import Row
from rlframe_algorithms.cost_model import CostModel
from rlframe_algorithms.dpo import DPO
from rlframe_algorithms.rm import RewardModel
from rlframe_algorithms.sft import SFT

ASK = [{"role": "user", "content": "2+2?"}]


def row(**columns):
    return Row((1,), {"prompt": "2+2=", **columns}, source="pairs.jsonl:3")


def answer(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("method", [RewardModel, DPO])
def test_a_row_is_a_pair_with_the_better_one_first(method):
    examples = method().examples(row(chosen="4", rejected="5"))
    assert [(e.response, e.columns["chosen"]) for e in examples] == [("4", True), ("5", False)]
    other = method(chosen_key="good", rejected_key="bad")
    assert [e.response for e in other.examples(row(good="4", bad="5"))] == ["4", "5"]


@pytest.mark.parametrize("before", [[], ASK])
def test_chat_messages_end_with_the_response(before):
    columns = {"prompt": ASK, "chosen": [*before, answer("4")], "rejected": [*before, answer("5")]}
    assert [e.response for e in DPO().examples(row(**columns))] == ["4", "5"]
    assert [e.response for e in SFT().examples(row(prompt=ASK, completion=[answer("4")]))] == ["4"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"chosen": "4"}, "no column 'rejected' .*name the right one by algo.rejected_key=COLUMN"),
        ({"chosen": "4", "rejected": 5}, "column 'rejected' is int, not text"),
        ({"chosen": [], "rejected": "5"}, "column 'chosen' is list, not text"),
        ({"chosen": ASK, "rejected": "5"}, "its last message must be the assistant's"),
        ({"chosen": [*ASK, answer("4")], "rejected": "5"}, "messages before .* not the prompt's"),
    ],
)
def test_a_row_that_is_no_pair_is_named(columns, said):
    with pytest.raises(DataError, match=said) as caught:
        DPO().examples(row(**columns))
    assert "pairs.jsonl:3" in str(caught.value)


def test_a_cost_model_needs_to_know_what_is_safe():
    columns = {"chosen": "4", "rejected": "5", "chosen_safe": True, "rejected_safe": False}
    examples = CostModel().examples(row(**columns))
    assert [e.columns for e in examples] == [
        {"chosen": True, "safe": True},
        {"chosen": False, "safe": False},
    ]
    with pytest.raises(DataError, match="'rejected_safe' is None.*rejected_safe_key=COLUMN"):
        CostModel().examples(row(chosen="4", rejected="5", chosen_safe=True))


def test_a_margin_is_a_number():
    method = RewardModel(margin_key="gap")
    examples = method.examples(row(chosen="4", rejected="5", gap=1))
    assert [e.columns["margin"] for e in examples] == [1.0, 1.0]
    with pytest.raises(DataError, match="column 'gap' is 'much', not a margin"):
        method.examples(row(chosen="4", rejected="5", gap="much"))


@pytest.mark.parametrize("method", [RewardModel, CostModel, DPO])
@pytest.mark.parametrize(
    "options",
    [
        {"samples_per_prompt": 4},
        {"kl_coef": 0.1},
        {"entropy_coef": 0.1},
        {"reduction": "fixed-length"},
        {"kl_estimator": "k1"},
    ],
)
def test_options_without_effect_are_refused(method, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        method.Config(**options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (DPO, {"beta": 0}),
        (DPO, {"label_smoothing": 0.5}),
        (RewardModel, {"centre_coef": -1}),
        (CostModel, {"sign_coef": -1}),
    ],
)
def test_ranges_are_checked(method, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        method.Config(**options)


def test_completion_is_a_response_where_there_is_no_other():
    assert [e.response for e in SFT().examples(row(completion="4"))] == ["4"]
    assert [e.response for e in SFT().examples(row(completion="4", response="5"))] == ["5"]

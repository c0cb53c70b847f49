"""SFT reads its responses from the data."""

from __future__ import annotations

import pytest

from rlframe import DataError
from rlframe.requests import Row
from rlframe_algorithms.sft import SFT


def row(**columns):
    return Row((1,), {"prompt": "2+2=", **columns}, source="train.jsonl:7")


def test_the_response_column_is_the_example():
    assert [e.response for e in SFT().examples(row(response="4"))] == ["4"]
    other = SFT(SFT.Config(response_key="target"))
    assert [e.response for e in other.examples(row(target="four"))] == ["four"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"answer": "4"}, "no column 'response' to learn from .it has answer, prompt"),
        ({"response": 4}, "'response' is int, not text"),
        ({"response": None}, "'response' is NoneType, not text"),
    ],
)
def test_a_row_without_a_response_is_named(columns, said):
    with pytest.raises(DataError, match=said) as caught:
        SFT().examples(row(**columns))
    assert "train.jsonl:7" in str(caught.value)


def test_nothing_is_sampled_or_scored():
    assert SFT.offline
    assert SFT.reads == ()
    assert SFT().scorers() == []
    assert [r.name for r in SFT(SFT.Config(kl_coef=0.1)).scorers()] == ["reference"]


def test_options_without_effect_are_refused():
    with pytest.raises(ValueError, match="samples_per_prompt must be 1 for sft, not 8"):
        SFT.Config(samples_per_prompt=8)

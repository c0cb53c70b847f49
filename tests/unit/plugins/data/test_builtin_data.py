from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.errors import DataError
from rlframe_plugins.data.builtin import BuiltinDataset


def opened(query: str) -> BuiltinDataset:
    return BuiltinDataset.open(f"builtin:arithmetic{'?' if query else ''}{query}")


def rows(query: str) -> list[dict[str, str]]:
    dataset = opened(query)
    return [dict(dataset[i]) for i in range(len(dataset))]


def test_each_question_is_in_one_split_once():
    train, test = rows("split=train"), rows("split=test")
    questions = [row["prompt"] for row in train + test]
    assert len(set(questions)) == len(questions) == 100 * 100
    assert 0.08 < len(test) / len(questions) < 0.12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(0, 10**9))
def test_splits_stay_apart_for_all_seeds(seed, size, other):
    train = {row["prompt"] for row in rows(f"split=train&seed={seed}&size={size}")}
    test = {row["prompt"] for row in rows(f"split=test&seed={other}&size={size}")}
    assert not train & test


def test_answers_are_right():
    for row in rows("split=test"):
        a, b = row["prompt"].removesuffix("=").split("+")
        assert row["answer"] == row["response"] == str(int(a) + int(b))


def test_slips_forget_the_carry_in_their_share_of_rows():
    wrong = carries = 0
    for row in rows("slips=0.6&size=4000&seed=3"):
        a, b = (int(x) for x in row["prompt"].removesuffix("=").split("+"))
        columns = (a // 10 + b // 10) % 10 * 10 + (a + b) % 10
        assert row["response"] in (row["answer"], str(columns))
        carries += columns != a + b
        wrong += row["response"] != row["answer"]
    assert 0.55 < wrong / carries < 0.65


def test_rows_beyond_the_questions_repeat_them_in_another_order_with_other_slips():
    one = len(opened(""))
    dataset = opened(f"slips=0.5&size={2 * one}")
    first = [dataset[i]["prompt"] for i in range(one)]
    second = [dataset[i]["prompt"] for i in range(one, 2 * one)]
    assert first != second
    assert sorted(first) == sorted(second)
    early = {dataset[i]["prompt"]: dataset[i]["response"] for i in range(one)}
    assert any(early[dataset[i]["prompt"]] != dataset[i]["response"] for i in range(one, 2 * one))


def test_rows_depend_on_the_options_alone():
    dataset, again = opened("seed=5&slips=0.5&size=20000"), opened("size=20000&slips=0.5&seed=5")
    late = [dataset[i] for i in (19999, 3, 10000)]
    assert [again[i] for i in (19999, 3, 10000)] == late
    assert [pickle.loads(pickle.dumps(dataset))[i] for i in (19999, 3, 10000)] == late
    assert dataset[3] == opened("seed=5&slips=0.5&size=10")[3]
    first = {"prompt": "44+44=", "answer": "88", "response": "88", "chosen": "88"}
    first |= {"rejected": "89", "chosen_safe": True, "rejected_safe": False}
    assert opened("")[0] == first


def test_fingerprint_changes_with_each_option():
    queries = ["", "split=test", "size=7", "seed=1", "slips=0.1"]
    assert len({opened(q).fingerprint for q in queries}) == len(queries)
    assert opened("size=7&seed=1").fingerprint == opened("seed=1&size=7").fingerprint


@pytest.mark.parametrize("index", [-1, 5])
def test_index_out_of_range(index):
    with pytest.raises(IndexError):
        opened("size=5")[index]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("builtin:arithmetik", "unknown builtin dataset 'arithmetik'. Did you mean 'arithmetic'?"),
        ("builtin:", "unknown builtin dataset ''"),
        ("builtin:arithmetic?spilt=test", "unknown option 'spilt'. Did you mean 'split'?"),
        ("builtin:arithmetic?split=tset", "unknown split 'tset'. Did you mean 'test'?"),
        ("builtin:arithmetic?size=many", "option 'size' is 'many', not a whole number"),
        ("builtin:arithmetic?slips=x", "option 'slips' is 'x', not a number"),
        ("builtin:arithmetic?size=-1", "size must be at least 0, not -1"),
        ("builtin:arithmetic?slips=1.5", "slips must be 0 to 1, not 1.5"),
        ("builtin:arithmetic?slips=nan", "slips must be 0 to 1, not nan"),
        ("builtin:arithmetic?size=1&size=2", "option 'size' is given twice"),
        ("builtin:arithmetic?size", "bad query field"),
    ],
)
def test_errors_name_the_uri_and_what_is_wrong(uri, message):
    with pytest.raises(DataError) as caught:
        BuiltinDataset.open(uri)
    assert str(caught.value).startswith(f"data '{uri}': ")
    assert message in str(caught.value)

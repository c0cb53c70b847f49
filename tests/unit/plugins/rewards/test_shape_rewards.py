from __future__ import annotations

import asyncio

import pytest

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row, Segment
from rlframe_plugins.rewards.shape import FormatReward, LengthReward, RegexReward


def score(kind, texts, columns=None, **options):
    reward = kind(kind.Config(**options))
    row = Row((1,), columns or {})
    reward.check(list(row.columns))
    return asyncio.run(reward.score(row, [episode(len(t), t) for t in texts]))


def episode(tokens: int, text: str = "") -> Episode:
    ids = [1] * tokens
    segment = Segment([1], ids, [True] * tokens, [0.0] * tokens, ids, ids)
    return Episode(Request((1,)), [segment], "stop", text)


def test_a_pattern_is_searched_or_matched():
    assert score(RegexReward, ["a1", "a", "1\n"], pattern=r"\d") == [1, 0, 1]
    assert score(RegexReward, ["12", "1a", ""], pattern=r"\d+", match="full") == [1, 0, 0]
    assert score(RegexReward, ["a\nb"], pattern="a.b", match="full") == [1]


def test_a_group_is_compared_with_a_column():
    texts = ["#### 3", "#### 4\n#### 3 ", "#### 3\n#### 4", "3", "####  "]
    found = score(RegexReward, texts, {"n": 3}, pattern=r"#### *(\S*)", column="n")
    assert found == [1, 1, 0, 0, 0]
    assert score(RegexReward, ["b"], {"n": "x"}, pattern=r"(a)?b", column="n") == [0]
    with pytest.raises(RewardError, match="compares with column 'n'"):
        score(RegexReward, ["b"], {"m": "x"}, pattern=r"(a)?b", column="n")


def test_a_bad_pattern_is_refused_with_its_config():
    with pytest.raises(ValueError, match=r"pattern '\(': "):
        RegexReward.Config("(")
    with pytest.raises(ValueError, match="needs a group"):
        RegexReward.Config("a", column="n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        (" <think>\na\n</think>\n\n<answer>b</answer>\n", 1),
        ("<think>a < b</think><answer>b</answer>", 1),
        ("<think>a</think><answer>b</answer>!", 0),
        ("so <think>a</think><answer>b</answer>", 0),
        ("<think>a</think> so <answer>b</answer>", 0),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think><answer> </answer>", 0),
        ("<think>a</think><answer>b", 0),
        ("<think>a</think><think>a</think><answer>b</answer>", 0),
        ("<think>a<answer>b</answer></think>", 0),
        ("<answer>b</answer>", 0),
        ("", 0),
    ],
)
def test_tags_in_their_order_and_nothing_else(text, value):
    assert score(FormatReward, [text]) == [value]


def test_other_tags():
    assert score(FormatReward, ["<a>1</a>", "1"], tags=("a",)) == [1, 0]
    for tags in ((), ("a b",), ("a", "a")):
        with pytest.raises(ValueError, match="tags must"):
            FormatReward.Config(tags=tags)


def test_length_falls_within_the_buffer():
    lengths = [0, 1, 6, 7, 8, 9, 10, 11, 99]
    texts = ["x" * n for n in lengths]
    found = score(LengthReward, texts, max_tokens=10, buffer=4, min_tokens=1)
    assert found == [-1, 0, 0, -0.25, -0.5, -0.75, -1, -1, -1]
    assert score(LengthReward, ["x" * 3, "x" * 4], max_tokens=3) == [0, -1]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": 2, "buffer": 3},
        {"max_tokens": 4, "buffer": 2, "min_tokens": 3},
    ],
)
def test_lengths_that_do_not_fit_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        LengthReward.Config(**options)

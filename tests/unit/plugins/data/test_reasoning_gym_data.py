from __future__ import annotations

import asyncio

import pytest

from rlframe.errors import ConfigError, RewardError
from rlframe.requests import Episode, Request, Row
from rlframe_plugins.data.reasoning_gym import ReasoningGymDataset
from rlframe_plugins.rewards.reasoning_gym import ReasoningGymReward

pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")

URI = "reasoning_gym:chain_sum?size=6&seed=3&max_terms=3&max_digits=2"


def test_rows_are_made_alike_each_time():
    one, other = ReasoningGymDataset.open(URI), ReasoningGymDataset.open(URI)
    assert len(one) == 6
    rows = [one[i] for i in range(6)]
    assert rows == [other[i] for i in reversed(range(6))][::-1]
    assert len({row["prompt"] for row in rows}) > 1
    assert set(rows[0]) == {"prompt", "answer", "metadata", "data_source"}
    assert rows[0]["data_source"] == "chain_sum"
    assert one.where(0) == "reasoning_gym:chain_sum: row 1"
    for index in (-1, 6):
        with pytest.raises(IndexError):
            one[index]


def test_the_fingerprint_changes_with_task_and_options():
    uris = [
        URI,
        URI.replace("seed=3", "seed=4"),
        URI.replace("=6", "=7"),
        "reasoning_gym:gcd?size=6",
    ]
    found = [ReasoningGymDataset.open(uri).fingerprint for uri in uris]
    assert len(set(found)) == 4
    assert ReasoningGymDataset.open(URI).fingerprint == found[0]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("reasoning_gym:chain_sm", "unknown task 'chain_sm'. Did you mean 'chain_sum'"),
        (
            "reasoning_gym:chain_sum?max_term=3",
            "unknown option 'max_term'. Did you mean 'max_terms'",
        ),
        ("reasoning_gym:chain_sum?max_terms=-3", "max_terms must be >= min_terms"),
        ("reasoning_gym:chain_sum?max_terms=x", "'max_terms': 'x'"),
        ("reasoning_gym:chain_sum?size=0", "size must be positive"),
    ],
)
def test_a_mistake_is_one_line(uri, message):
    with pytest.raises(ConfigError, match=message) as caught:
        ReasoningGymDataset.open(uri)
    assert "\n" not in str(caught.value)


def score(row, texts, **options):
    reward = ReasoningGymReward(ReasoningGymReward.Config(**options))
    episodes = [Episode(Request((1,)), [], "stop", text) for text in texts]
    return asyncio.run(reward.score(Row((1,), row), episodes))


def test_the_tasks_own_verifier_scores():
    row = ReasoningGymDataset.open(URI)[0]
    answer = row["answer"]
    wrong = str(int(answer) + 1)
    texts = [answer, f"so\n<answer> {answer} </answer>", wrong, "", f"It is {answer}."]
    right = [value == 1.0 for value in score(row, texts)]
    assert right == [True, True, False, False, False]
    assert [v == 1.0 for v in score(row, texts, take="number")] == [True, True, False, False, True]
    assert [v == 1.0 for v in score(row, texts, take="tag")] == [False, True, False, False, False]


def test_another_right_answer_than_the_rows_is_right():
    row = ReasoningGymDataset.open("reasoning_gym:countdown?size=1")[0]
    expression = row["metadata"]["expression"]
    assert score(row, [expression, f"({expression})", "1"])[:2] == [1.0, 1.0]


def test_rows_of_no_task_are_refused():
    with pytest.raises(RewardError, match="needs column 'metadata'"):
        score({"answer": "1"}, ["1"])
    with pytest.raises(RewardError, match="unknown task 'None'"):
        score({"answer": "1", "metadata": {}}, ["1"])

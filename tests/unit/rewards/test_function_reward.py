from __future__ import annotations

import asyncio
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlframe.errors import RewardError
from rlframe.interfaces.data import Reward
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import FunctionReward, Scorer, WeightedReward, load_reward
from rlframe.rewards.values import NotAReward, as_parts

ROW = Row((1, 2), {"prompt": "1+1=", "answer": "2", "level": 3}, 7, source="a.jsonl:4")


def episode(text: str, ids: tuple[int, ...] = (5, 6)) -> Episode:
    count = len(ids)
    segment = Segment([1, 2], list(ids), [True] * count, [0.0] * count, [0] * count, [0] * count)
    return Episode(Request((1, 2)), [segment], "stop", text)


def score(function, texts=("2", "3"), *, weight=1.0, row=ROW, **options):
    reward = function if isinstance(function, Reward) else FunctionReward(function, "f")
    scorer = Scorer([WeightedReward("f", reward, weight)], **options)
    episodes = [episode(text) for text in texts]
    kept = asyncio.run(scorer.score(row, episodes))
    return [(e.text, e.reward) for e in kept]


# --- the forms of a function ----------------------------------------------------------------------


def test_named_columns_are_arguments():
    assert score(lambda response, answer: float(response == answer)) == [("2", 1.0), ("3", 0.0)]


def test_everything_is_there_by_name():
    seen = {}

    def function(prompt, prompt_ids, response, response_ids, finish_reason, level):
        seen.update(locals())
        return 0

    score(function, ["2"])
    del seen["seen"]
    assert seen == {
        "prompt": "1+1=",
        "prompt_ids": [1, 2],
        "response": "2",
        "response_ids": [5, 6],
        "finish_reason": "stop",
        "level": 3,
    }


def test_keyword_arguments_take_everything():
    assert score(lambda **all: len(all), ["2"]) == [("2", 7.0)]


def test_a_default_stands_where_there_is_no_column():
    assert score(lambda response, scale=4: scale, ["2"]) == [("2", 4.0)]
    assert score(lambda response, level=9: level, ["2"]) == [("2", 3.0)]


def test_plural_names_score_the_group_at_once():
    calls = []

    def function(prompts, responses, answer, response_ids, finish_reasons):
        calls.append(1)
        assert prompts == ["1+1="] * 3
        assert response_ids == [[5, 6]] * 3
        assert finish_reasons == ["stop"] * 3
        return [r == a for r, a in zip(responses, answer, strict=True)]

    assert [r for _, r in score(function, ["2", "3", "2"])] == [1, 0, 1]
    assert len(calls) == 1


def test_async_functions_run_together():
    async def scenario():
        waiting = 0
        everyone = asyncio.Event()

        async def function(response):
            nonlocal waiting
            waiting += 1
            if waiting == 3:
                everyone.set()
            await everyone.wait()
            return 1

        scorer = Scorer([WeightedReward("f", FunctionReward(function))], timeout_s=30)
        episodes = [episode(t) for t in "abc"]
        return await scorer.score(ROW, episodes)

    assert [e.reward for e in asyncio.run(scenario())] == [1, 1, 1]


def test_an_async_batch_and_a_callable_object():
    async def batch(responses):
        return [1] * len(responses)

    class Counter:
        async def __call__(self, response):
            return len(response)

    assert score(batch) == [("2", 1), ("3", 1)]
    assert score(Counter(), ["abc"]) == [("abc", 3)]


def test_a_plain_function_never_runs_twice_at_once():
    inside = threading.Semaphore(1)

    def function(response):
        assert inside.acquire(blocking=False)
        asyncio.run(asyncio.sleep(0.001))
        inside.release()
        return 1

    async def scenario():
        scorer = Scorer([WeightedReward("f", FunctionReward(function))], timeout_s=30)
        groups = [[episode("a"), episode("b")] for _ in range(5)]
        return await asyncio.gather(*(scorer.score(ROW, group) for group in groups))

    assert all(e.reward == 1 for group in asyncio.run(scenario()) for e in group)


# --- what it may return ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (1, {"f": 1.0}),
        (True, {"f": 1.0}),
        (np.float32(0.5), {"f": 0.5}),
        (np.bool_(True), {"f": 1.0}),
        (np.array(0.25), {"f": 0.25}),
        (torch.tensor(0.5), {"f": 0.5}),
        (torch.tensor([2]), {"f": 2.0}),
        ({"a": 1, "b": torch.tensor(0.5), "c": None}, {"f/a": 1.0, "f/b": 0.5}),
        (None, {}),
        ({"a": None}, {}),
    ],
)
def test_numbers_of_every_library_are_numbers(value, parts):
    assert as_parts(value, "f") == parts


@pytest.mark.parametrize(
    "value",
    [
        *("1", b"1", [1], (1,), {}, {1: 2}, {"a": "x"}, 1j, object()),
        *(math.nan, math.inf, 10**400, np.nan, torch.tensor(math.inf)),
        *(torch.ones(2), np.ones(3), {"a": math.nan}),
    ],
)
def test_anything_else_is_not(value):
    with pytest.raises(NotAReward):
        as_parts(value, "f")
    with pytest.raises(RewardError, match="reward 'f' returned"):
        score(lambda response: value)


def test_parts_are_summed_with_weights_and_kept_unweighted():
    rewards = [
        WeightedReward("a", FunctionReward(lambda response: {"x": 1, "y": 0.5}), 2.0),
        WeightedReward("b", FunctionReward(lambda response: 4), -0.25),
        WeightedReward("c", FunctionReward(lambda response: None), 100.0),
        WeightedReward("seen", FunctionReward(lambda response: 9), 0.0),
    ]
    one = episode("t")
    asyncio.run(Scorer(rewards).score(ROW, [one]))
    assert one.reward == 2.0 * 1.5 - 0.25 * 4
    assert one.reward_parts == {"a/x": 1.0, "a/y": 0.5, "b": 4.0, "seen": 9.0}


def test_a_reward_is_none_where_all_abstain():
    one = episode("t")
    abstains = WeightedReward("f", FunctionReward(lambda response: None))
    assert asyncio.run(Scorer([abstains]).score(ROW, [one])) == [one]
    assert one.reward is None
    assert one.reward_parts == {}


# --- faults ---------------------------------------------------------------------------------------


def fails_on_three(response):
    if response == "3":
        raise KeyError("boom")
    return 1


def nan_on_three(response):
    return math.nan if response == "3" else 1


async def fails_on_three_later(response):
    await asyncio.sleep(0)
    return fails_on_three(response)


@pytest.mark.parametrize("function", [fails_on_three, nan_on_three, fails_on_three_later])
def test_a_fault_names_function_prompt_and_response(function):
    with pytest.raises(RewardError) as caught:
        score(function, ["2", "3", "4"])
    text = str(caught.value)
    assert "reward 'f'" in text
    assert "prompt (a.jsonl:4): '1+1='" in text
    assert "response: '3'" in text
    assert "reward.on_error=skip" in text


@pytest.mark.parametrize("function", [fails_on_three, nan_on_three, fails_on_three_later])
def test_a_fault_is_skipped_where_that_is_asked_for(function):
    assert score(function, ["2", "3", "4"], on_error="skip") == [("2", 1), ("4", 1)]


def test_an_exception_says_where_it_was_raised():
    with pytest.raises(
        RewardError, match=r"raised KeyError: 'boom' \(.*test_function_reward.py:\d"
    ):
        score(fails_on_three)


def test_a_function_that_exits_or_times_out_itself_is_a_fault_like_any():
    def leaves(response):
        raise SystemExit(3)

    async def slow(response):
        raise TimeoutError("the judge did not answer")

    with pytest.raises(RewardError, match="raised SystemExit: 3"):
        score(leaves)
    with pytest.raises(RewardError, match="raised TimeoutError: the judge did not answer"):
        score(slow)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1], "returned 1 rewards for 2 responses"),
        ([1, 2, 3], "returned 3 rewards for 2 responses"),
        (1.0, "returned float, not a list of 2 rewards"),
        ("ab", "returned str, not a list of 2 rewards"),
        (None, "returned NoneType, not a list"),
    ],
)
def test_a_wrong_number_of_rewards_is_a_fault(result, message):
    with pytest.raises(RewardError, match=message):
        score(lambda responses: result)

    class Wrong(Reward):
        async def score(self, row, episodes):
            return result

    with pytest.raises(RewardError, match="returned .* for 2 responses"):
        score(Wrong())


def test_arrays_of_rewards_are_lists():
    assert score(lambda responses: torch.tensor([1.0, 0.5])) == [("2", 1.0), ("3", 0.5)]
    assert score(lambda responses: np.array([1, 0])) == [("2", 1.0), ("3", 0.0)]


def test_a_plain_function_that_hangs_times_out_and_hangs_nothing_else():
    release = threading.Event()

    def function(response):
        if response == "hang":
            release.wait(60)
        return 1

    async def scenario():
        scorer = Scorer(
            [WeightedReward("f", FunctionReward(function))], on_error="skip", timeout_s=0.2
        )
        first = [episode("a"), episode("hang"), episode("b")]
        second = [episode("c")]
        kept = await asyncio.gather(scorer.score(ROW, first), scorer.score(ROW, second))
        third = await scorer.score(ROW, [episode("d")])
        return [[e.text for e in group] for group in [*kept, third]], scorer.take_fault()

    try:
        kept, error = asyncio.run(scenario())
    finally:
        release.set()
    assert kept == [["a"], ["c"], ["d"]]
    assert "timed out" in str(error)


def test_an_async_function_that_hangs_times_out():
    async def function(response):
        if response == "3":
            await asyncio.Event().wait()
        return 1

    assert score(function, on_error="skip", timeout_s=0.1) == [("2", 1)]
    with pytest.raises(RewardError, match=r"timed out: .* reward.timeout_s=0.1"):
        score(function, timeout_s=0.1)


def test_a_class_that_hangs_times_out():
    class Hangs(Reward):
        async def score(self, row, episodes):
            await asyncio.Event().wait()

    with pytest.raises(RewardError, match="timed out"):
        score(Hangs(), timeout_s=0.1)


def test_a_missing_column_of_one_row_is_named():
    row = Row((1,), {"prompt": "p"}, 0)
    with pytest.raises(RewardError, match="failed: this row has no column 'answer'"):
        score(lambda response, answer: 1, row=row)
    with pytest.raises(RewardError, match="failed: this row has no column 'answer'"):
        score(lambda responses, answer: [1, 1], row=row)


# --- before the run -------------------------------------------------------------------------------


def test_an_unknown_parameter_is_an_early_error_with_the_nearest():
    reward = FunctionReward(lambda response, anwser: 1, "mine")
    with pytest.raises(RewardError, match=r"'mine'.*'anwser'.*Did you mean 'answer'"):
        reward.check(["answer", "prompt"])
    with pytest.raises(RewardError, match="Did you mean 'response'"):
        FunctionReward(lambda respone: 1).check(["answer"])
    reward.check(["anwser"])
    FunctionReward(lambda response, option=1, **more: 1).check([])
    FunctionReward(lambda responses, answer: 1).check(["answer"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda response, /: 1, "positional-only"),
        (lambda response, prompts: 1, "mixes 'response'"),
        (lambda: 1, "takes no argument"),
        (dict, "no readable signature|takes"),
    ],
)
def test_a_signature_that_cannot_be_called_is_refused(function, message):
    with pytest.raises(RewardError, match=message):
        FunctionReward(function)


def test_what_a_config_selects_becomes_a_reward():
    class Own(Reward):
        async def score(self, row, episodes):
            return [1.0] * len(episodes)

    def selected(value, config=None):
        return SimpleNamespace(name="f.py:mine", config=config, load=lambda: value)

    assert load_reward(selected(Own, config=3)).config == 3
    made = Own()
    assert load_reward(selected(made)) is made
    assert load_reward(selected(lambda response: 1)).name == "mine"
    with pytest.raises(RewardError, match=r"f.py:mine"):
        load_reward(selected(int))


def test_an_empty_group_is_left_alone():
    assert score(lambda response: 1, []) == []

"""What reward functions of strangers return, raise and change: one clear fault, nothing shared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from rlframe.errors import RewardError
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import FunctionReward, Scorer, WeightedReward
from rlframe.rewards.values import NotAReward, as_number, as_parts

COLUMNS = {"prompt": [{"role": "user", "content": "a"}], "tags": ["x"], "n": {"k": [1]}}


def run(function, count=2, **options):
    """Score a group; returns the rewards that came out."""
    segment = Segment([1], [5], [True], [0.0], [0], [0])
    episodes = [Episode(Request((1,)), [segment], "stop", f"r{n}") for n in range(count)]
    scorer = Scorer([WeightedReward("f", FunctionReward(function, "f"))], **options)
    row = Row((1,), COLUMNS, 7, source="a.jsonl:4")
    return [e.reward for e in asyncio.run(scorer.score(row, episodes))], scorer.take_fault()


class RaisesAsFloat:
    def __float__(self):
        raise ZeroDivisionError("mine")


class RaisesAsText:
    def __repr__(self):
        raise ValueError("mine")


class RaisesAsItem:
    def item(self):
        raise KeyError("mine")


class RaisesEverywhere:
    def __getattr__(self, name):
        raise RuntimeError("mine")


class RaisesAsMapping(Mapping):
    def __getitem__(self, name):
        raise RuntimeError("mine")

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1


class RaisesAsMessage(Exception):
    def __str__(self):
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (RaisesAsFloat, "not a number: ZeroDivisionError: mine"),
        (RaisesAsText, "whose repr raised ValueError"),
        (RaisesAsItem, "not a number: KeyError: 'mine'"),
        (RaisesEverywhere, "not a number: RuntimeError: mine"),
        (RaisesAsMapping, "cannot be read: RuntimeError: mine"),
        (np.datetime64("2020-01-01", "ns"), "not a number"),
        (np.timedelta64(5, "ns"), "not a number"),
        (np.ma.masked, "masked, not a number"),
        (np.array([]), "without elements"),
        (np.array("1"), "not a number"),
        (torch.tensor([]), "without elements"),
        (torch.ones(2, 1), "of several elements"),
        (torch.tensor(1.0, device="meta"), "not a number"),
        ({"a": float("nan")}, "nan, not a finite number .*in its part 'a'"),
        ({"": 1.0}, "the key ''"),
        ({"a\n": 1.0}, "a part needs a printable name"),
    ],
)
def test_an_odd_value_is_one_line(value, message):
    with pytest.raises(NotAReward, match=message) as caught:
        as_parts(value() if isinstance(value, type) else value, "f")
    assert "\n" not in str(caught.value)


def test_a_number_with_more_digits_than_python_prints():
    with pytest.raises(NotAReward, match="not a finite number"):
        as_number(10**5000)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_number_whatever_its_shape(shape):
    assert as_number(np.full(shape, 0.25, np.float16)) == 0.25
    assert as_number(torch.full(shape, 0.25, dtype=torch.bfloat16)) == 0.25
    assert as_number(np.ma.array(np.full(shape, 0.25))) == 0.25


@pytest.mark.parametrize("result", [np.array(0.5), torch.tensor(0.5), 0.5, {"a": [1, 2]}, "ab"])
def test_no_list_for_a_group_is_named(result):
    with pytest.raises(RewardError, match="not a list of 2 rewards"):
        run(lambda responses: result)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "error",
    [SystemExit, GeneratorExit, TimeoutError, RecursionError, MemoryError, RaisesAsMessage],
)
def test_whatever_is_raised_is_a_fault_of_that_response(error, later):
    def plain(response):
        if response == "r1":
            raise error()
        return 0.5

    async def asynchronous(response):
        return plain(response)

    function = asynchronous if later else plain
    with pytest.raises(RewardError, match=f"raised {error.__name__}"):
        run(function)
    rewards, fault = run(function, on_error="skip")
    assert rewards == [0.5]
    assert f"raised {error.__name__}" in fault
    assert "a.jsonl:4" in fault
    assert "'r1'" in fault
    assert "\n" not in fault


def test_an_async_group_that_exits_is_a_fault():
    async def leaves(responses):
        raise SystemExit(3)

    with pytest.raises(RewardError, match="raised SystemExit: 3"):
        run(leaves)


def test_what_a_function_changes_is_its_own():
    """Rewards depend neither on the order of responses nor on other rewards."""

    def changes(prompt, tags, n, prompt_ids, response_ids):
        for mine in (prompt, tags, n["k"], prompt_ids, response_ids):
            mine.append("more")
        return float(len(prompt) + len(tags) + len(n["k"]) + len(prompt_ids) + len(response_ids))

    def changes_all(**columns):
        return changes(**{k: columns[k] for k in ("prompt", "tags", "n")}, prompt_ids=[1],
                       response_ids=[5])  # fmt: skip

    def changes_group(responses, tags):
        responses.clear()
        tags[0].append("more")
        return [float(len(one)) for one in tags]

    before = repr(COLUMNS)
    assert run(changes, 3)[0] == [10.0] * 3
    assert run(changes_all, 3)[0] == [10.0] * 3
    assert run(changes_group, 3)[0] == [2.0, 1.0, 1.0]
    assert repr(COLUMNS) == before


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (lambda completions, **columns: [1.0], "Did you mean 'responses'"),
        (lambda solution_str: 1.0, "Did you mean 'response'"),
    ],
)
def test_names_of_other_libraries_are_told(function, hint):
    with pytest.raises(RewardError, match=hint):
        FunctionReward(function, "f").check(["answer"])

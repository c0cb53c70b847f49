from __future__ import annotations

import asyncio
import threading

import pytest

from rlframe.requests import Episode, Request, Row
from rlframe_plugins.rewards import math as module
from rlframe_plugins.rewards.math import MathReward

pytest.importorskip("math_verify", reason="needs the extra 'math'")


def score(reward, answer, texts):
    episodes = [Episode(Request((1,)), [], "stop", text) for text in texts]
    return asyncio.run(reward.score(Row((1,), {"answer": answer}), episodes))


@pytest.fixture(scope="module")
def reward():
    return MathReward(MathReward.Config(limit_s=60))


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"\frac{1}{2}", [r"so \boxed{\frac{2}{4}}", "$0.5$", "It is 1/2."], ["2", "", "x"]),
        ("$x^2 - 1$", [r"$(x-1)(x+1)$"], ["$x^2$"]),
        ("12", ["12", r"\boxed{12}", "The answer is 12"], ["21", r"\boxed{1}2"]),
        (r"\sqrt{8}", [r"$2\sqrt{2}$"], ["$2.83$"]),
    ],
)
def test_equal_expressions_are_right(reward, answer, right, wrong):
    assert score(reward, answer, right + wrong) == [1.0] * len(right) + [0.0] * len(wrong)


def test_it_runs_in_any_thread_and_for_many_groups_at_once(reward):
    async def together():
        rows = [Row((1,), {"answer": str(i)}) for i in range(6)]
        episodes = [Episode(Request((1,)), [], "stop", str(i % 3)) for i in range(6)]
        groups = [reward.score(r, [e]) for r, e in zip(rows, episodes, strict=True)]
        return await asyncio.gather(*groups)

    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(together())))
    thread.start()
    thread.join(120)
    assert found == [[[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]]]


def test_an_expression_without_end_costs_its_limit_and_nothing_else():
    """The process holds its interpreter's lock for ever; it is ended and replaced."""
    slow = MathReward(MathReward.Config(limit_s=60))
    assert score(slow, "1", ["1"]) == [1.0]
    first = slow._worker._process
    slow.config = MathReward.Config(limit_s=0.5)
    assert score(slow, "1", ["$9^{9^{9^{9}}}$"]) == [0.0]
    assert first.poll() is not None
    slow.config = MathReward.Config(limit_s=60)
    assert score(slow, "1", ["1", "2"]) == [1.0, 0.0]


def test_a_process_that_dies_is_a_wrong_answer_and_replaced(reward):
    assert score(reward, "1", ["1"]) == [1.0]
    reward._worker._process.kill()
    reward._worker._process.wait()
    assert score(reward, "1", ["1", "1"]) == [0.0, 1.0]


def test_a_process_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    with pytest.raises(Exception, match="its process does not start"):
        score(MathReward(), "1", ["1"])


def test_the_limit_is_checked():
    with pytest.raises(ValueError, match="limit_s must be above 0"):
        MathReward.Config(limit_s=0)

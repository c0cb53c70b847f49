"""What a reward raised is asked for again; what it answered wrongly is not."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rlframe.errors import RewardError
from rlframe.interfaces.data import Reward
from rlframe.rewards.retries import pauses
from tests.unit.rewards.test_function_reward import score


class Flaky:
    """Fails so many times for each response, then answers; ``calls`` are what it was asked."""

    def __init__(self, failures: dict[str, int], error: Exception | None = None) -> None:
        self.failures, self.error = dict(failures), error or ConnectionError("gone")
        self.calls: list[str] = []

    def __call__(self, response: str) -> float:
        self.calls.append(response)
        self.failures[response] = self.failures.get(response, 0) - 1
        if self.failures[response] >= 0:
            raise self.error
        return 1.0


def test_only_what_failed_is_asked_for_again():
    flaky = Flaky({"3": 2})
    assert score(flaky, ("2", "3"), retries=2, retry_wait_s=0) == [("2", 1.0), ("3", 1.0)]
    assert flaky.calls == ["2", "3", "3", "3"]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_then_it_is_as_on_error_says(retries):
    with pytest.raises(RewardError, match="gone"):
        score(Flaky({"3": 99}), ("2", "3"), retries=retries, retry_wait_s=0)
    flaky = Flaky({"3": 99})
    kept = score(flaky, ("2", "3"), retries=retries, retry_wait_s=0, on_error="skip")
    assert kept == [("2", 1.0)]
    assert flaky.calls.count("3") == 1 + retries


def test_a_group_is_asked_for_as_a_whole():
    """A function of a whole group may compare its responses."""
    asked = []

    def function(responses):
        asked.append(list(responses))
        if len(asked) < 3:
            raise ConnectionError("gone")
        return [float(len(responses))] * len(responses)

    assert score(function, ("2", "3"), retries=2, retry_wait_s=0) == [("2", 2.0), ("3", 2.0)]
    assert asked == [["2", "3"]] * 3


def test_a_class_that_fails_is_asked_again():
    class Service(Reward):
        def __init__(self) -> None:
            super().__init__(None)
            self.asked = 0

        async def score(self, row, episodes):
            self.asked += 1
            if self.asked == 1:
                raise OSError("no route")
            return [0.5] * len(episodes)

    service = Service()
    assert score(service, ("2", "3"), retries=1, retry_wait_s=0) == [("2", 0.5), ("3", 0.5)]
    assert service.asked == 2


def test_what_took_too_long_is_asked_again():
    asked = []

    async def function(response):
        asked.append(response)
        await asyncio.sleep(0 if len(asked) > 1 else 3600)
        return 1.0

    assert score(function, ("2",), retries=1, retry_wait_s=0, timeout_s=0.2) == [("2", 1.0)]
    assert asked == ["2", "2"]


@pytest.mark.parametrize("value", [float("nan"), "good", None])
def test_a_wrong_answer_is_not(value):
    asked = []

    def function(response):
        asked.append(response)
        return value

    with pytest.raises(RewardError) if value is not None else _anything():
        score(function, ("2",), retries=3, retry_wait_s=0)
    assert asked == ["2"]


class _anything:  # noqa: N801 - beside pytest.raises
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_pauses_double_up_to_half_a_minute():
    assert list(pauses(8, 1.0)) == [1, 2, 4, 8, 16, 30, 30, 30]
    assert list(itertools.islice(pauses(0, 1.0), 1)) == []

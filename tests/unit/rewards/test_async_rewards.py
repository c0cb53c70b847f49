"""Async rewards that block, swallow their cancellation or cancel themselves hold nobody."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from rlframe.errors import RewardError
from rlframe.interfaces.data import Reward
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import FunctionReward, Scorer, WeightedReward
from rlframe.rewards.loops import LoopThread

ROW = Row((1,), {"prompt": "p"}, 7, source="a.jsonl:4")


def episode(text: str) -> Episode:
    segment = Segment([1], [5], [True], [0.0], [0], [0])
    return Episode(Request((1,)), [segment], "stop", text)


def made(function, form):
    if form == "function":
        return FunctionReward(function, "f")

    class Own(Reward):
        async def score(self, row, episodes):
            return [await function(one.text) for one in episodes]

    return Own()


def scorer_of(reward, timeout_s=0.2):
    return Scorer([WeightedReward("f", reward)], on_error="skip", timeout_s=timeout_s)


async def texts(scorer, *names):
    return [one.text for one in await scorer.score(ROW, [episode(name) for name in names])]


@pytest.mark.parametrize("form", ["function", "class"])
def test_one_that_blocks_is_left_behind_and_later_calls_are_scored(form):
    release = threading.Event()

    async def function(response):
        if response == "block":
            release.wait(60)
        return 1

    async def scenario():
        scorer = scorer_of(made(function, form))
        together = await asyncio.gather(texts(scorer, "block"), texts(scorer, "b"))
        return together, await texts(scorer, "c"), scorer.take_fault()

    try:
        together, later, fault = asyncio.run(scenario())
    finally:
        release.set()
    assert together[0] == []
    assert later == ["c"]
    assert "timed out" in fault


def test_calls_that_wait_behind_one_that_blocks_go_to_a_fresh_loop():
    release, inside = threading.Event(), threading.Event()

    async def block():
        inside.set()
        release.wait(60)

    async def scenario():
        loop = LoopThread("test")
        blocked = asyncio.ensure_future(loop.run(block, 0.2))
        await asyncio.to_thread(inside.wait)
        waiting = asyncio.ensure_future(loop.run(lambda: asyncio.sleep(0, "done"), 30))
        with pytest.raises(TimeoutError):
            await blocked
        return await waiting

    try:
        assert asyncio.run(scenario()) == "done"
    finally:
        release.set()


@pytest.mark.parametrize("form", ["function", "class"])
def test_one_that_swallows_its_cancellation_ends_neither_late_nor_with_the_run(form):
    stop = []

    async def function(response):
        while response == "stays" and not stop:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return 1

    reward = made(function, form)
    scorer = scorer_of(reward)
    assert asyncio.run(texts(scorer, "stays")) == []
    assert asyncio.run(texts(scorer, "b")) == ["b"]
    stop.append(True)


def test_a_slow_call_leaves_the_loop_to_the_others_of_its_reward():
    async def function(response):
        return threading.get_ident() if response == "a" else await asyncio.Event().wait()

    async def scenario():
        reward = FunctionReward(function, "f")
        first = await reward.outcomes(ROW, [episode("a")], 30)
        slow = await reward.outcomes(ROW, [episode("a"), episode("slow")], 0.1)
        return first, slow, await reward.outcomes(ROW, [episode("a")], 30)

    first, slow, after = asyncio.run(scenario())
    assert slow[0] == first[0] == after[0] != threading.get_ident()
    assert isinstance(slow[1], TimeoutError)


def test_a_call_that_is_cancelled_is_cancelled_on_its_loop():
    began, ended = threading.Event(), threading.Event()

    async def waits():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def scenario():
        loop = LoopThread("test")
        call = asyncio.ensure_future(loop.run(waits, None))
        await asyncio.to_thread(began.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(ended.wait, 60)

    asyncio.run(scenario())


@pytest.mark.parametrize("form", ["function", "class"])
def test_one_that_cancels_itself_is_a_fault_of_its_own(form):
    async def function(response):
        if response == "cancels":
            raise asyncio.CancelledError
        return 1

    scorer = Scorer([WeightedReward("f", made(function, form))], timeout_s=30)
    with pytest.raises(RewardError, match="cancelled"):
        asyncio.run(texts(scorer, "cancels"))


def test_a_task_that_exits_does_not_end_the_loop():
    async def leaves():
        task = asyncio.ensure_future(_exit())
        await asyncio.sleep(0)
        del task
        return "still here"

    async def _exit():
        raise SystemExit(3)

    loop = LoopThread("test")
    assert asyncio.run(loop.run(leaves, 30)) == "still here"
    assert asyncio.run(loop.run(lambda: asyncio.sleep(0, 2), 30)) == 2


def test_the_thread_ends_with_its_owner():
    loop = LoopThread("test-owner")
    asyncio.run(loop.run(lambda: asyncio.sleep(0), 30))
    (thread,) = [one for one in threading.enumerate() if one.name == "test-owner"]
    del loop
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_an_error_in_place_of_a_value_is_that_of_its_episode():
    class Own(Reward):
        async def score(self, row, episodes):
            return [RewardError("no") if e.text == "bad" else 1.0 for e in episodes]

    scorer = Scorer([WeightedReward("f", Own())], on_error="skip")
    assert asyncio.run(texts(scorer, "a", "bad", "b")) == ["a", "b"]
    assert "failed: no" in scorer.take_fault()


def test_one_that_limits_itself_has_no_other_limit():
    class Own(Reward):
        limits_itself = True

        async def score(self, row, episodes):
            await asyncio.sleep(0.3)
            return [1.0 for _ in episodes]

    assert asyncio.run(texts(scorer_of(Own(), timeout_s=0.01), "a")) == ["a"]

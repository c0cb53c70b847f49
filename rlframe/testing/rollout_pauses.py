"""The part of the rollout kit about pause, sleep and event loops; see ``rollout_kit``."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.rollout_reference import RolloutReference

__all__ = ["LONG", "PROMPT", "SHORT", "RolloutPauses", "begun"]

PROMPT = (7, 8, 9)
SHORT = Sampling(max_new_tokens=4, min_new_tokens=4)
LONG = Sampling(max_new_tokens=50, min_new_tokens=50)
WAIT_S = 120.0
"""Longest wait for an engine to begin."""


class RolloutPauses:
    """Checks of requests that wait, and of an engine that rests."""

    lasting: ClassVar[int] = 50
    """Tokens of requests that still run when something is done to them.

    An engine that draws in another process needs as many as it cannot draw meanwhile.
    """

    @property
    def endless(self) -> Sampling:
        """For such a request."""
        return Sampling(max_new_tokens=self.lasting, min_new_tokens=self.lasting)

    def claims(self, engine: RolloutEngine, capability: str) -> None:
        """Skip what an engine does not claim."""
        raise NotImplementedError

    def test_pause_keeps_requests_until_resume(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Nothing is drawn in between, also for requests that come while paused."""
        self.claims(engine, "pause")

        async def go() -> list[Completion]:
            engine.pause("keep")
            tasks = [asyncio.create_task(engine.generate(Request(PROMPT, LONG))) for _ in "ab"]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            engine.load(4, reference.tensors())
            engine.resume()
            return await asyncio.gather(*tasks)

        for got in asyncio.run(go()):
            assert set(got.versions) == {4}
            assert len(got.token_ids) == 50

    def test_pause_can_abort(self, engine: RolloutEngine) -> None:
        """Every open request returns; the engine serves again after ``resume``."""
        self.claims(engine, "pause")

        async def go() -> tuple[list[Completion], Completion]:
            asked = [Request(PROMPT, self.endless) for _ in "ab"]
            tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
            await asyncio.sleep(0)
            engine.pause("abort")
            ended = await asyncio.gather(*tasks)
            engine.resume()
            return ended, await engine.generate(Request(PROMPT, SHORT))

        ended, after = asyncio.run(go())
        assert [got.finish_reason for got in ended] == ["abort", "abort"]
        assert len(after.token_ids) == 4

    @pytest.mark.parametrize("level", [1, 2])
    def test_sleep_and_wake(
        self, engine: RolloutEngine, reference: RolloutReference, level: int
    ) -> None:
        """Asleep it refuses; awake, and after level 2 loaded again, it samples as before.

        To do either twice changes nothing.
        """
        self.claims(engine, "sleep")
        request = Request(PROMPT, Sampling(temperature=0, max_new_tokens=8))
        before = asyncio.run(engine.generate(request))
        engine.wake()  # one that is awake
        engine.sleep(level)
        engine.sleep(level)
        with pytest.raises(RolloutError, match="asleep"):
            asyncio.run(engine.generate(request))
        engine.wake()
        engine.wake()
        if level == 2:
            with pytest.raises(RolloutError, match="load"):
                asyncio.run(engine.generate(request))
            engine.load(3, reference.tensors())
        assert asyncio.run(engine.generate(request)).token_ids == before.token_ids

    def test_outlives_event_loops(self, engine: RolloutEngine) -> None:
        """One ``asyncio.run`` a step, one of them ending with requests that nobody awaits."""

        async def leave() -> None:
            task = asyncio.create_task(engine.generate(Request(PROMPT, LONG)))
            await asyncio.sleep(0)
            assert not task.done()

        async def stay() -> list[Completion]:
            return await asyncio.gather(*[engine.generate(Request(PROMPT, SHORT)) for _ in "abc"])

        for _ in range(2):
            asyncio.run(leave())
            assert [len(got.token_ids) for got in asyncio.run(stay())] == [4, 4, 4]

    def test_stats_count(self, engine: RolloutEngine) -> None:
        """Requests and tokens since the start, and seconds of work."""

        async def go() -> None:
            await asyncio.gather(*[engine.generate(Request(PROMPT, SHORT)) for _ in "abc"])

        before = dict(engine.stats())
        asyncio.run(go())
        after = engine.stats()
        grown = {name: after[name] - before[name] for name in after}
        assert grown["requests"] == 3
        assert grown["prompt_tokens"] == 3 * len(PROMPT)
        assert grown["response_tokens"] == 12
        assert grown["busy_s"] > 0


async def begun(engine: RolloutEngine) -> None:
    """Wait until the engine works on the requests of tasks that have just been made."""
    before = engine.stats()["busy_s"]
    try:
        async with asyncio.timeout(WAIT_S):
            while engine.stats()["busy_s"] == before:
                await asyncio.sleep(0)
    except TimeoutError:
        pytest.fail(f"busy_s in stats() did not grow within {WAIT_S:g} s of a request")

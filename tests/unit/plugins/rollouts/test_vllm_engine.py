"""The engine in a worker over a fake link, without vLLM or processes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError, SyncError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe_plugins.rollouts.hosted.parcel import Parcel, opened_parcel
from rlframe_plugins.rollouts.vllm.engine import VLLMRollout

WEIGHTS = {"model.embed_tokens.weight": torch.randn(5, 3), "b": torch.randn(3)}


class FakeLink:
    """Answers when a test says so; keeps what it was asked."""

    def __init__(self) -> None:
        self.told: list[tuple] = []
        self.jobs: dict[int, tuple] = {}
        self.given: dict[str, torch.Tensor] = {}
        self.shown: dict[str, torch.Tensor] = {}
        self.fails = ""
        self.closed = self.gone = False

    def ask(self, verb, *arguments):
        number, future = len(self.jobs), Future()
        self.jobs[number] = (arguments[0], future)
        return number, future

    def call(self, timeout_s, verb, *arguments):
        self.told.append((verb, *arguments))
        if verb == self.fails:
            raise RolloutError("it broke")
        if verb == "load":
            _, path, entries = arguments
            self.given = {name: one.clone() for name, one in opened_parcel(path, entries)}
        if verb == "stats":
            return {"busy_s": 1.5}
        if verb == "show":
            self.parcel = Parcel(self.shown)
            starts = {name: [0] * one.ndim for name, one in self.shown.items()}
            return [(self.parcel.path, list(self.parcel.entries), starts)]
        if verb == "hide":
            self.parcel.close()
        return None

    def abort(self, number):
        self.told.append(("abort", number))
        self.answer(number, "abort")

    def answer(self, number, reason="length"):
        future = self.jobs[number][1]
        if future.set_running_or_notify_cancel():
            future.set_result(Completion((7, 8), (-1.0, -2.0), (3, 3), reason))

    def close(self):
        self.closed = True


@pytest.fixture
def engine(tmp_path):
    path = str(tiny_model(tmp_path))
    made = VLLMRollout(VLLMRollout.Config(), RolloutSpec(path, ModelConfig(path=path)))
    made._link = FakeLink()
    return made


def verbs(engine):
    return [one[0] for one in engine._link.told]


def test_weights_arrive_as_they_are(engine):
    assert engine.version == -1
    engine.load(3, WEIGHTS)
    assert engine.version == 3
    assert all(torch.equal(engine._link.given[name], WEIGHTS[name]) for name in WEIGHTS)


def test_a_load_that_fails_leaves_no_version(engine):
    engine.load(3, WEIGHTS)
    engine._link.fails = "load"
    with pytest.raises(RolloutError, match="broke"):
        engine.load(4, WEIGHTS)
    assert engine.version == -1
    with pytest.raises(RolloutError, match="load"):
        asyncio.run(engine.generate(Request((5,))))


def test_requests_that_come_during_a_load_are_taken(engine):
    """In a worker a load runs on one thread and requests come on another."""
    engine.load(3, WEIGHTS)
    call, seen = engine._link.call, []

    def loading(timeout_s, verb, *arguments):
        async def ask():
            work = asyncio.create_task(engine.generate(Request((5,))))
            await asyncio.sleep(0)
            engine._link.answer(0)
            seen.append(await work)

        asyncio.run(ask())
        return call(timeout_s, verb, *arguments)

    engine._link.call = loading
    engine.load(4, WEIGHTS)
    assert seen[0].token_ids == (7, 8)


def test_requests_are_counted_aborted_and_cancelled(engine):
    engine.load(3, WEIGHTS)

    async def go():
        names = ("a", "b", "c")
        works = [
            asyncio.create_task(engine.generate(Request((5, 6), request_id=one))) for one in names
        ]
        await asyncio.sleep(0)
        engine.abort("b")
        engine.abort("nobody")
        works[2].cancel()
        engine._link.answer(0)
        return await asyncio.gather(*works, return_exceptions=True)

    first, second, third = asyncio.run(go())
    assert (first.finish_reason, second.finish_reason) == ("length", "abort")
    assert isinstance(third, asyncio.CancelledError)
    assert engine._link.told[-2:] == [("abort", 1), ("abort", 2)]
    found = engine.stats()
    assert (found["requests"], found["prompt_tokens"], found["response_tokens"]) == (2, 4, 4)
    assert found["busy_s"] == 1.5


def test_a_response_has_room(engine):
    engine.load(3, WEIGHTS)

    async def go():
        work = asyncio.create_task(
            engine.generate(Request((5,) * 60, Sampling(max_new_tokens=20, seed=4)))
        )
        await asyncio.sleep(0)
        engine._link.answer(0)
        await work

    asyncio.run(go())
    job = engine._link.jobs[0][0]
    assert job.sampling["max_tokens"] == 4
    assert job.sampling["seed"] is not None
    with pytest.raises(RolloutError, match="64"):
        asyncio.run(engine.generate(Request((5,) * 64)))


def test_sleep_refuses_requests_and_level_2_forgets_weights(engine):
    engine.load(3, WEIGHTS)
    engine.sleep(1)
    with pytest.raises(RolloutError, match="asleep"):
        asyncio.run(engine.generate(Request((5,))))
    engine.wake()
    assert engine.version == 3
    engine.sleep(2)
    engine.load(4, WEIGHTS)
    engine.wake()
    assert engine.version == 4
    assert ("sleep", 2, False) in engine._link.told


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_head_must_compute_with_its_embedding(same, engine):
    engine.load(3, WEIGHTS)
    head = WEIGHTS["model.embed_tokens.weight"].clone()
    head[0, 0] += 0.0 if same else 1e-6
    engine._link.shown = {**WEIGHTS, "lm_head.weight": head}
    if same:
        assert set(engine.weights()) == set(WEIGHTS)
    else:
        with pytest.raises(SyncError, match="lm_head"):
            engine.weights()
    assert verbs(engine)[-1] == "hide"


def test_without_processes_there_are_figures_and_nothing_to_end(engine):
    link = engine._link
    engine.close()
    assert link.closed
    assert engine.stats()["busy_s"] == 0
    engine.pause()
    engine.resume()
    engine.close()


def test_weights_after_its_death_start_it_again(engine, monkeypatch):
    """What a killed process left is ended; the version is that of the new one."""
    dead, fresh = engine._link, FakeLink()
    dead.gone = True
    started = []

    def start(dtype):
        started.append(dtype)
        engine._link = fresh

    monkeypatch.setattr(engine, "_start", start)
    engine.load(7, WEIGHTS)
    assert dead.closed
    assert started == ["float32"]
    assert [one[0] for one in fresh.told] == ["load"]
    assert engine.version == 7

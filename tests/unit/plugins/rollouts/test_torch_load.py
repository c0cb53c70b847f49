"""Hundreds of requests at once: each is answered once, and memory stays what it was."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS as BLOCK
from rlframe_plugins.rollouts.torch.engine import TorchRollout

pytestmark = pytest.mark.timeout(300)

REQUESTS, BLOCKS, HOST = 500, 24, 10
LONG = 24
"""Requests that come first and want more blocks than there are."""
FATES = ("answered",) * 6 + ("cancelled", "aborted", "too late", "in time")


def made(rng: random.Random, number: int, version: int) -> tuple[Request, str]:
    """A request of any length, some of a group, some of a session, and what is to happen to it."""
    fate = rng.choice(FATES)
    group = number // 4
    words = random.Random(group if number % 8 < 4 else number)
    prompt = tuple(words.randrange(3, 33) for _ in range(words.choice((1, 9, 30, 70))))
    limit = 100 if number < LONG else rng.randrange(1, 20)
    deadline = {"too late": 0.0, "in time": 1000.0}.get(fate)
    request = Request(
        prompt,
        Sampling(max_new_tokens=limit, min_new_tokens=limit if number < LONG else 0, seed=number),
        deadline_s=deadline,
        request_id=f"{version}-{number}",
        session_id=str(group) if number % 3 else "",
    )
    return request, fate


async def ended(engine, request, start):
    """Its answer, or how it was cancelled; asked for some turns of the loop after the others."""
    for _ in range(start):
        await asyncio.sleep(0)
    return await engine.generate(request)


async def trouble(engine, reference, tasks, cases, version):
    """Once each few steps somebody cancels, aborts, pauses, changes the weights."""
    rng = random.Random(version)
    order = rng.sample(range(REQUESTS), REQUESTS)
    for turn in range(REQUESTS // 3):
        for number in order[3 * turn : 3 * turn + 3]:
            request, fate = cases[number]
            if fate == "cancelled":
                tasks[number].cancel()
            elif fate == "aborted":
                engine.abort(request.request_id)
        if turn % 100 == 50:
            engine.pause("keep")
            before = engine.stats()["response_tokens"]
            for _ in range(5):
                await asyncio.sleep(0)
            assert engine.stats()["response_tokens"] == before
        if turn == 60:
            reference.change(seed=version)
            engine.load(version, reference.tensors())
        if turn == 120:
            engine.sleep(1)
            assert engine.gauges()["kv_used_tokens"] == 0
            engine.wake()
        engine.resume()
        assert engine.gauges()["kv_used_tokens"] <= BLOCKS * BLOCK
        assert engine.runner._cache.blocks <= BLOCKS
        await asyncio.sleep(0)


async def load(engine, reference, version):
    rng = random.Random(version)
    cases = [made(rng, number, version) for number in range(REQUESTS)]
    starts = [0 if number < LONG else rng.randrange(60) for number in range(REQUESTS)]
    tasks = [
        asyncio.ensure_future(ended(engine, request, start))
        for (request, _), start in zip(cases, starts, strict=True)
    ]
    await trouble(engine, reference, tasks, cases, version)
    return cases, await asyncio.gather(*tasks, return_exceptions=True)


def judge(reference, cases, results, version):
    """What came back fits its fate, and its tokens the model where the last weights drew them."""
    checked = 0
    for (request, fate), got in zip(cases, results, strict=True):
        if isinstance(got, BaseException):
            assert (fate, type(got)) == ("cancelled", asyncio.CancelledError), got
            continue
        count = len(got.token_ids)
        assert count == len(got.logprobs) == len(got.versions) <= request.sampling.max_new_tokens
        assert list(got.versions) == sorted(got.versions)
        assert set(got.versions) <= {version - 1, version}
        if got.finish_reason == "length":
            assert count == request.sampling.max_new_tokens
        if fate in ("answered", "in time"):
            assert got.finish_reason in ("stop", "length")
        if set(got.versions) == {version} and checked < 25:
            expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
            assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)
            checked += 1
    assert checked == 25
    return Counter(type(got).__name__ for got in results)


def test_each_of_many_is_answered_once_and_memory_stays_flat(tmp_path):
    """Random lengths, late and cancelled and aborted ones, pauses, new weights, little cache."""
    path = str(tiny_model(tmp_path / "model", max_position_embeddings=512))
    reference = RolloutReference(tmp_path / "model")
    config = TorchRollout.Config(
        max_batch=48, max_kv_tokens=BLOCKS * BLOCK, host_kv_tokens=HOST * BLOCK
    )
    engine = TorchRollout(config, RolloutSpec(path, ModelConfig(path=path)))
    engine.load(0, reference.tensors())
    for version in (1, 2):
        before = engine.stats()["requests"]
        cases, results = asyncio.run(load(engine, reference, version))
        kinds = judge(reference, cases, results, version)
        assert kinds["Completion"] + kinds["CancelledError"] == REQUESTS
        # A caller may be cancelled after its answer is there, before it looks.
        unseen = engine.stats()["requests"] - before - kinds["Completion"]
        assert 0 <= unseen <= kinds["CancelledError"]
        assert kinds["CancelledError"] > 0
        gauges = engine.gauges()
        assert gauges["running"] == gauges["waiting"] == gauges["kv_used_tokens"] == 0
        assert not engine._open
        assert not engine.runner.has_work
        assert engine.runner._cache.slots <= HOST
    counted = engine.stats()
    assert counted["preemptions"] > 0
    assert counted["prefix_hit_tokens"] > 0

"""One engine on an event loop, without vLLM: a fake engine draws 10, 11, 12, ..."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rlframe.errors import RolloutError
from rlframe_plugins.rollouts.hosted.frames import Job
from rlframe_plugins.rollouts.vllm.core import Core
from rlframe_plugins.rollouts.vllm.gauges import COUNTERS, GAUGES, Gauges
from tests.unit.plugins.rollouts.vllm_fakes import FakeEngine, FakeTokenizer

PROMPT = (7, 8)


async def started():
    engine = FakeEngine()
    core = Core(engine, dict, FakeTokenizer, Gauges())
    await core.load(3, "path", [("w", "float32", (2,), 0)])
    engine.told.clear()
    return engine, core


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def job(**more):
    return Job(PROMPT, {"max_tokens": 4}, **more)


async def generate(core, key, **more):
    return await core.finish(core.begin(key, job(**more)))


def allow(engine, count):
    for _ in range(count):
        engine.gate.release()


def test_a_response_has_what_was_drawn():
    async def go():
        engine, core = await started()
        allow(engine, 4)
        got = await generate(core, 0)
        assert (got.token_ids, got.finish_reason) == ((10, 11, 12, 13), "length")
        assert got.logprobs == (-1.0, -1.1, -1.2, -1.3)
        assert got.versions == (3,) * 4
        assert engine.prompts[0]["prompt_token_ids"] == [7, 8]

    asyncio.run(go())


def test_a_stop_string_ends_it_with_its_last_token():
    async def go():
        engine, core = await started()
        allow(engine, 4)
        got = await generate(core, 0, stop=("bc",))
        assert (got.token_ids, got.finish_reason) == ((10, 11, 12), "stop")
        assert engine.ended == ["0"]
        allow(engine, 4)
        late = await generate(core, 1, stop=("bc",), min_new_tokens=4)
        assert (len(late.token_ids), late.finish_reason) == (4, "length")

    asyncio.run(go())


@pytest.mark.parametrize("drawn", [0, 2])
def test_abort_and_deadline_give_what_there_is(drawn):
    async def go():
        engine, core = await started()
        work = core.finish(core.begin(5, job()))
        allow(engine, drawn)
        if drawn:
            await settle()
        core.abort(5)
        got = await work
        assert (len(got.token_ids), got.finish_reason) == (drawn, "abort")
        late = await generate(core, 6, deadline_s=0.0)
        assert (late.token_ids, late.finish_reason) == ((), "abort")
        allow(engine, 4)
        assert len((await generate(core, 8)).token_ids) == 4

    asyncio.run(go())


def test_an_error_reaches_its_request_alone():
    async def go():
        engine, core = await started()
        engine.breaks = True
        allow(engine, 1)
        with pytest.raises(RolloutError, match="no more"):
            await generate(core, 0)
        engine.breaks = False
        allow(engine, 4)
        assert (await generate(core, 1)).finish_reason == "length"

    asyncio.run(go())


def test_tokens_carry_the_version_that_drew_them_and_prompts_are_kept_apart():
    async def go():
        engine, core = await started()
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 2)
        await settle()
        await core.load(4, "path", [])
        names = [told[0] for told in engine.told]
        assert names == [
            "pause_generation",
            "collective_rpc",
            "reset_prefix_cache",
            "resume_generation",
        ]
        allow(engine, 6)
        assert (await work).versions == (3, 3, 4, 4)
        await generate(core, 1)
        salts = [prompt["cache_salt"] for prompt in engine.prompts]
        assert salts[0] != salts[1]

    asyncio.run(go())


def test_tokens_that_come_while_it_is_being_stopped_are_of_the_old_version():
    async def go():
        engine, core = await started()
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 1)
        await settle()

        async def stopping(**_):
            allow(engine, 1)
            await settle()

        engine.pause_generation = stopping
        await core.load(4, "path", [])
        allow(engine, 2)
        assert (await work).versions == (3, 3, 4, 4)

    asyncio.run(go())


def test_a_load_under_pause_does_not_resume():
    async def go():
        engine, core = await started()
        await core.pause("keep")
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 4)
        await core.load(4, "path", [])
        await settle()
        assert not engine.prompts
        assert "resume_generation" not in [told[0] for told in engine.told]
        await core.resume()
        assert (await work).versions == (4,) * 4

    asyncio.run(go())


def test_pause_can_abort_what_waits_and_what_runs():
    async def go():
        engine, core = await started()
        works = [asyncio.ensure_future(generate(core, n)) for n in range(3)]
        allow(engine, 2)
        await settle()
        await core.pause("abort")
        ended = await asyncio.gather(*works)
        assert {got.finish_reason for got in ended} == {"abort"}
        assert sum(len(got.token_ids) for got in ended) == 2

    asyncio.run(go())


@pytest.mark.parametrize("real", [True, False])
def test_sleep_says_what_it_gave_back(real):
    async def go():
        engine, core = await started()
        await core.sleep(2, real)
        told = [one[0] for one in engine.told]
        assert ("sleep" in told) == real
        assert (await core.gauges())["freed_bytes"] == 0
        engine.told.clear()
        await core.load(4, "path", [])
        await core.wake(real)
        woken = [one for one in engine.told if one[0] == "wake_up"]
        assert woken == ([("wake_up", ["weights"]), ("wake_up",)] if real else [])

    asyncio.run(go())


def test_what_sleeps_gives_back_more_but_nothing_twice():
    async def go():
        engine, core = await started()
        for level in (1, 1, 2, 1):
            await core.sleep(level, True)
        told = [one for one in engine.told if one[0] in ("sleep", "wake_up")]
        assert told == [("sleep", 1), ("wake_up",), ("sleep", 2)]
        await core.wake(True)
        await core.wake(True)
        assert [one[0] for one in engine.told].count("wake_up") == 2

    asyncio.run(go())


def test_a_version_that_comes_again_finds_no_prompt_of_the_first():
    """Its weights may be others, as after a resume; some prompts are still held."""

    async def go():
        engine, core = await started()
        for version in (4, 4, 2):
            await core.load(version, "path", [])
            allow(engine, 4)
            assert (await generate(core, 0)).versions == (version,) * 4
        assert len({prompt["cache_salt"] for prompt in engine.prompts}) == 3

    asyncio.run(go())


def test_figures_add_up():
    gauges = Gauges()
    room = SimpleNamespace(num_gpu_blocks=10, block_size=16)
    gauges._cache = room
    cache = SimpleNamespace(queries=10, hits=4)
    scheduler = SimpleNamespace(
        num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.5, prefix_cache_stats=cache
    )
    step = SimpleNamespace(num_prompt_tokens=3, num_generation_tokens=2, num_preempted_reqs=0)
    for _ in range(3):
        gauges.record(scheduler, step)
    gauges.record(None, None)
    now, found = gauges.gauges(), gauges.counters()
    assert set(now) == set(GAUGES)
    assert set(found) == set(COUNTERS)
    assert (now["running"], now["waiting"], now["kv_used_tokens"]) == (2, 1, 80)
    assert now["kv_total_tokens"] == 160
    assert (found["prefix_queries"], found["prefix_hits"]) == (30, 12)
    assert (found["prefilled_tokens"], found["generated_tokens"]) == (9, 6)
    assert now["generated_tokens_per_s"] > 0


def test_nothing_runs_after_an_abort_though_vllm_reports_no_more():
    async def go():
        engine = FakeEngine()
        gauges = Gauges()
        core = Core(engine, dict, FakeTokenizer, gauges)
        await core.load(3, "path", [])
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 1)
        await settle()
        cache = SimpleNamespace(queries=2, hits=0)
        scheduler = SimpleNamespace(
            num_running_reqs=1, num_waiting_reqs=1, kv_cache_usage=0.5, prefix_cache_stats=cache
        )
        gauges._cache = SimpleNamespace(num_gpu_blocks=10, block_size=16)
        gauges.record(scheduler, None)
        names = ("running", "waiting", "kv_used_tokens", "kv_total_tokens")
        found = await core.gauges()
        assert [found[name] for name in names] == [1, 1, 80, 160]
        await core.pause("abort")
        await work
        found = await core.gauges()
        assert [found[name] for name in names] == [0, 0, 0, 160]

    asyncio.run(go())


def test_a_load_that_fails_ends_what_ran():
    async def go():
        engine, core = await started()
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 1)
        await settle()
        engine.breaks = True
        with pytest.raises(ValueError, match="no more"):
            await core.load(4, "path", [])
        assert (core.version, core.loaded) == (-1, False)
        assert (await work).finish_reason == "abort"
        engine.breaks = False
        await core.load(5, "path", [])
        allow(engine, 4)
        assert (await generate(core, 1)).versions == (5,) * 4

    asyncio.run(go())


def test_what_comes_during_a_load_waits_for_it():
    async def go():
        engine, core = await started()
        engine.slow = asyncio.Event()
        loading = asyncio.ensure_future(core.load(4, "path", []))
        pausing = asyncio.ensure_future(core.pause("keep"))
        await settle()
        work = asyncio.ensure_future(generate(core, 0))
        allow(engine, 4)
        await settle()
        assert not engine.prompts
        engine.slow.set()
        await asyncio.gather(loading, pausing)
        assert [one[0] for one in engine.told][-2:] == ["resume_generation", "pause_generation"]
        await core.resume()
        assert (await work).versions == (4,) * 4

    asyncio.run(go())

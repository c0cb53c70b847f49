"""SGLang servers that die, come back, or were restarted unseen, while the rollout uses them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from rlframe.errors import RolloutError
from rlframe.interfaces.strategy import RankInfo
from rlframe.requests import Completion, Request
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.replicas import Seen
from tests.unit.plugins.rollouts.sglang_rig import LONG, agrees, ended, made, path, run, serve

__all__ = ["ended", "path"]


def test_a_server_that_dies_loses_no_request(path: Path) -> None:
    """What it had goes on elsewhere from its tokens, under the same weights."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    engine.load(1, reference.tensors())
    servers[0].scheduler.lasting = LONG.max_new_tokens
    requests = [Request(PROMPTS[1], LONG, group_id=n, request_id=str(n)) for n in range(8)]

    async def go() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        while sum(len(job.ids) for job in servers[0].scheduler.jobs.values()) < 12:
            await asyncio.sleep(0.001)
        servers[0].die()
        got = await asyncio.gather(*tasks)
        while engine.stats()["router/deaths"] == 0:  # found by a check, which this loop runs
            await asyncio.sleep(0.001)
        return got

    for request, got in zip(requests, asyncio.run(go()), strict=True):
        assert len(got.token_ids) == 40
        agrees(reference, request, got)
    stats = engine.stats()
    assert stats["router/retries"] == 4
    assert stats["router/deaths"] == 1
    assert stats["requests"] == 8
    rest = [body for _, p, body in servers[1].asked if p == "/generate"]
    assert sum(len(body["input_ids"]) > 3 for body in rest) >= 1, "from the tokens that are known"
    engine.close()


def test_a_server_that_comes_back_gets_the_weights_before_requests(path: Path) -> None:
    """Under the same address, with the weights that it was started with."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    reference.change(seed=1)
    engine.load(1, reference.tensors())
    servers[0].die()
    asked = [Request(PROMPTS[1], LONG, group_id=n) for n in range(4)]
    assert all(len(got.token_ids) == 40 for got in run(engine, *asked))
    servers[0].engine.load(9, RolloutReference(path).tensors())
    servers[0].scheduler.weight_version = "default"
    servers[0].rise()

    async def until_back() -> None:
        while engine.gauges()["router/replicas_up"] < 2:
            await asyncio.gather(engine.generate(Request(PROMPTS[0], SAMPLINGS[0])))

    asyncio.run(asyncio.wait_for(until_back(), 60))
    assert servers[0].scheduler.weight_version == "1"
    again = [Request(PROMPTS[1], SAMPLINGS[0], group_id=100 + n) for n in range(6)]
    for request, got in zip(again, run(engine, *again), strict=True):
        agrees(reference, request, got)
    assert any(p == "/generate" for _, p, _ in servers[0].asked[-8:])
    engine.close()


def test_a_server_that_was_started_again_sleeps_as_the_others_do(path: Path) -> None:
    """Back while they sleep, with all its memory: it gives it back, and takes it again once."""
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    engine.load(1, RolloutReference(path).tensors())
    servers[0].die()
    assert all(len(g.token_ids) == 40 for g in run(engine, *[Request(PROMPTS[1], LONG)] * 4))
    engine.sleep(1)
    servers[0].scheduler.weight_version = "default"
    servers[0].rise()
    while engine.gauges()["router/replicas_up"] < 2:
        pass
    assert [one.scheduler.memory for one in servers] == [{"kv_cache"}] * 2
    assert servers[0].scheduler.weight_version == "1"
    engine.wake()
    assert [one.scheduler.memory for one in servers] == [set()] * 2
    assert all(len(g.token_ids) == 40 for g in run(engine, *[Request(PROMPTS[1], LONG)] * 4))
    engine.close()


def test_a_server_that_slept_when_it_was_lost_wakes_when_it_is_back(path: Path) -> None:
    """It was out of reach alone, and missed the call."""
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    engine.load(1, RolloutReference(path).tensors())
    engine.sleep(2)
    engine.load(2, RolloutReference(path).tensors())
    servers[0].die()
    engine.wake()
    assert [one.scheduler.memory for one in servers] == [{"kv_cache"}, set()]
    servers[0].rise()
    while engine.gauges()["router/replicas_up"] < 2:
        run(engine, Request(PROMPTS[0], SAMPLINGS[0]))
    assert servers[0].scheduler.memory == set()
    assert all(len(g.token_ids) == 40 for g in run(engine, *[Request(PROMPTS[1], LONG)] * 4))
    engine.close()


def test_weights_pass_a_server_that_is_away(path: Path) -> None:
    """It gets them when it is back; where all are away the load fails."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers, limit_s=5.0)
    engine.load(1, reference.tensors())
    servers[1].die()
    reference.change(seed=2)
    engine.load(2, reference.tensors())
    assert engine.gauges()["router/replicas_up"] == 1
    servers[1].rise()
    asked = Request(PROMPTS[1], SAMPLINGS[0])
    while engine.gauges()["router/replicas_up"] < 2:
        agrees(reference, asked, run(engine, asked)[0])
    assert servers[1].scheduler.weight_version == "2"
    for server in servers:
        server.die()
    with pytest.raises(RolloutError, match="cannot be reached"):
        engine.load(3, reference.tensors())
    engine.close()


def test_tokens_of_a_server_that_was_restarted_meanwhile_are_not_taken(path: Path) -> None:
    """So fast that no check saw it: it has the weights of its folder, not the run's."""
    reference = RolloutReference(path)
    server = serve(path)
    engine = made(path, server, check_s=0.1)
    reference.change(seed=1)
    engine.load(1, reference.tensors())
    server.engine.load(9, RolloutReference(path).tensors())
    server.scheduler.weight_version = "default"
    asked = Request(PROMPTS[1], LONG)
    (got,) = run(engine, asked)
    assert set(got.versions) == {1}
    agrees(reference, asked, got)
    assert engine.stats()["router/deaths"] == 1
    engine.close()


def test_a_second_cancellation_leaves_nothing_behind(path: Path) -> None:
    """The router cancels what a lost server had, and a caller may cancel at the same moment."""
    server = serve(path)
    engine = made(path, server)
    engine.load(1, RolloutReference(path).tensors())
    (own,) = engine._servers

    async def go() -> None:
        request = Request(PROMPTS[1], LONG, request_id="twice")
        task = asyncio.ensure_future(own.generate(request, Seen()))
        while not own._stops:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    engine.do(go())
    assert own._stops == {}
    engine.close()


def test_the_first_of_several_workers_commands_the_servers(path: Path) -> None:
    server = serve(path)
    first, second = made(path, server), made(path, server)
    second.rank = RankInfo(rank=1, world=2, local_rank=1)
    tensors = RolloutReference(path).tensors()
    for engine in (second, first):
        engine.load(1, tensors)
        engine.pause("keep")
        engine.resume()
    updates = [where for _, where, _ in server.asked]
    assert updates.count("/update_weights_from_disk") == 1
    assert {v for e in (first, second) for v in run(e, Request(PROMPTS[1], LONG))[0].versions} == {
        1
    }
    for engine in (first, second):
        engine.close()

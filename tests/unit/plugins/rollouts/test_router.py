"""The router in virtual time: where requests go, and that each is answered once whatever dies."""

from __future__ import annotations

import asyncio

import pytest

from rlframe.errors import RolloutError
from rlframe.requests import Completion
from rlframe.testing.virtual_time import run_in_virtual_time
from rlframe_plugins.rollouts.router import Router
from tests.unit.plugins.rollouts.sim_replica import SimReplica, ask, expected, made, whole


def test_requests_go_where_least_is_open() -> None:
    replicas, router = made(3)

    async def go() -> None:
        await asyncio.gather(*[router.generate(ask()) for _ in range(9)])
        for _ in range(3):
            await router.generate(ask())

    run_in_virtual_time(go())
    assert [len(one.asked) for one in replicas] == [4, 4, 4]


def test_a_group_and_the_turns_of_a_session_stay_together() -> None:
    replicas, router = made(3)

    async def go() -> None:
        for turn in range(3):
            asked = [ask(group=g, session=f"{g}-{k}") for g in range(6) for k in range(4)]
            await asyncio.gather(*[router.generate(request) for request in asked])
            await router.generate(ask(tokens=turn + 1))

    run_in_virtual_time(go())
    homes = [{r.group_id for r in one.asked if r.group_id >= 0} for one in replicas]
    assert sum(map(len, homes)) == 6
    assert [len(home) for home in homes] == [2, 2, 2]


@pytest.mark.parametrize("streams", [True, False])
def test_what_a_dead_replica_had_goes_on_elsewhere(streams: bool) -> None:
    """From the tokens that are known, where they are; else from the prompt with the same seed."""
    replicas, router = made(2)
    for one in replicas:
        one.streams = streams
    request = ask(tokens=6)

    async def go() -> Completion:
        task = asyncio.create_task(router.generate(request))
        await asyncio.sleep(3.5)
        replicas[0].die()
        return await task

    whole(request, run_in_virtual_time(go()))
    (rest,) = replicas[1].asked
    if streams:
        assert rest.prompt_ids == (1, 2, 3, 3, 4, 5)
        assert rest.sampling.max_new_tokens == 3
        assert rest.sampling.seed != 7
    else:
        assert (rest.prompt_ids, rest.sampling.seed) == ((1, 2, 3), 7)
    assert router.stats()["deaths"] == router.stats()["retries"] == 1


def test_one_that_hangs_fails_its_checks_and_loses_its_requests() -> None:
    replicas, router = made(2, check_s=0.5)
    request = ask(tokens=6)

    async def go() -> Completion:
        task = asyncio.create_task(router.generate(request))
        await asyncio.sleep(2.5)
        replicas[0].hangs = True
        return await task

    whole(request, run_in_virtual_time(go()))
    assert replicas[1].asked[0].prompt_ids == (1, 2, 3, 3, 4)
    assert not replicas[0].running


def test_one_that_is_only_busy_keeps_its_requests() -> None:
    """Its checks are late, but its tokens come."""
    replicas, router = made(2, check_s=0.5)
    replicas[0].busy = True
    request = ask(tokens=40)
    whole(request, run_in_virtual_time(router.generate(request)))
    assert len(replicas[0].asked) == 1
    assert router.stats()["deaths"] == 0


def test_a_lost_request_of_a_replica_that_is_well_is_all_that_is_lost() -> None:
    """One broken connection: the others of that replica go on, and so does the replica."""
    replicas, router = made(1)
    others = [ask(tokens=9) for _ in range(3)]
    victim = ask(tokens=5)

    async def go() -> list[Completion]:
        tasks = [asyncio.create_task(router.generate(r)) for r in (*others, victim)]
        await asyncio.sleep(2.5)
        broken, replicas[0].deaths = replicas[0].deaths, replicas[0].deaths + 1
        replicas[0].running[victim.request_id].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        replicas[0].deaths = broken
        return await asyncio.gather(*tasks)

    *rest, last = run_in_virtual_time(go())
    for request, got in zip(others, rest, strict=True):
        whole(request, got)
    whole(victim, last)
    assert router.stats()["deaths"] == 0
    assert router.stats()["retries"] == 1


def test_requests_wait_for_the_only_replica_and_it_is_welcomed_first() -> None:
    replicas, router = made(1, check_s=0.5)
    request = ask()

    async def go() -> Completion:
        replicas[0].die()
        task = asyncio.create_task(router.generate(request))
        await asyncio.sleep(60)
        assert router.gauges()["waiting"] == 1
        replicas[0].rise()
        return await task

    whole(request, run_in_virtual_time(go()))
    assert replicas[0].welcomed == 1
    assert router.stats()["returns"] == 1


def test_a_wait_has_a_limit_and_a_name() -> None:
    replicas, router = made(2, wait_s=30.0, waits="cluster.start_timeout_s")

    async def go() -> None:
        for one in replicas:
            one.die()
        await router.generate(ask())

    with pytest.raises(RolloutError, match=r"cluster.start_timeout_s=30 s: 0: 0 is dead; 1: 1 is"):
        run_in_virtual_time(go())


def test_where_none_can_come_back_nobody_waits() -> None:
    replicas, router = made(2)

    async def go() -> float:
        for one in replicas:
            one.die()
            one.gone_for_good = True
        with pytest.raises(RolloutError, match="no replica of 'rollout' can serve: "):
            await router.generate(ask())
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(go()) < 2


def test_a_request_that_kills_every_replica_is_given_up() -> None:
    replicas, router = made(2, losses=3, check_s=0.5)

    async def kill() -> None:
        while True:
            await asyncio.sleep(0.1)
            for one in replicas:
                if one.running:
                    one.die()
                elif not one.alive:
                    one.rise()

    async def go() -> None:
        killer = asyncio.create_task(kill())
        try:
            await router.generate(ask())
        finally:
            killer.cancel()

    with pytest.raises(RolloutError, match=r"lost its replica 4 times.*may be what kills.*died"):
        run_in_virtual_time(go())


async def dies_under_a_request(
    replica: SimReplica, router: Router, tokens: int, after_s: float, back: bool = False
) -> None:
    """A request is answered whole; 3 s after the death the replica may be back, or is looked at."""
    request = ask(tokens=tokens)
    task = asyncio.create_task(router.generate(request))
    await asyncio.sleep(after_s)
    replica.die()
    await asyncio.sleep(3)
    if back:
        replica.rise()
    whole(request, await task)


def test_a_check_that_began_before_a_loss_says_nothing() -> None:
    """It was answered by a replica that lived then."""
    replicas, router = made(2, check_s=1.0)
    plain = replicas[0].check

    async def slow() -> str:
        found = await plain()
        await asyncio.sleep(0.9)
        return found

    replicas[0].check = slow  # type: ignore[method-assign]
    run_in_virtual_time(dies_under_a_request(replicas[0], router, 3, after_s=1.5))
    assert router.stats()["deaths"] == 1
    assert router.up == [replicas[1]]


def test_a_welcome_that_fails_in_whatever_way_is_tried_again() -> None:
    """The replica stays away, and the others are checked all the same."""
    replicas, router = made(2, check_s=1.0)
    plain, tries = replicas[0].welcome, [KeyError("version"), ValueError("x"), None]

    async def welcome() -> None:
        found = tries.pop(0)
        if found is not None:
            raise found
        await plain()

    replicas[0].welcome = welcome  # type: ignore[method-assign]
    run_in_virtual_time(dies_under_a_request(replicas[0], router, 40, after_s=3.5, back=True))
    assert tries == []
    assert len(router.up) == 2


def test_abort_and_deadline_end_with_what_there_is() -> None:
    replicas, router = made(2)
    aborted, late, waiting = ask(tokens=9), ask(tokens=9, deadline=2.5), ask(tokens=9)

    async def go() -> list[Completion]:
        tasks = [asyncio.create_task(router.generate(r)) for r in (aborted, late)]
        await asyncio.sleep(3.5)
        router.abort(aborted.request_id)
        for one in replicas:
            one.die()
        tasks.append(asyncio.create_task(router.generate(waiting)))
        await asyncio.sleep(5)
        router.abort(waiting.request_id)
        return await asyncio.gather(*tasks)

    first, second, third = run_in_virtual_time(go())
    assert list(first.token_ids) == expected(aborted, 3)
    assert list(second.token_ids) == expected(late, 2)
    assert third.token_ids == ()
    assert {one.finish_reason for one in (first, second, third)} == {"abort"}


def test_an_abort_before_the_replica_knows_the_request_counts() -> None:
    _, router = made(1)
    request = ask()

    async def go() -> Completion:
        task = asyncio.create_task(router.generate(request))
        await asyncio.sleep(0)
        router.abort(request.request_id)
        return await task

    assert run_in_virtual_time(go()).finish_reason == "abort"


def test_it_outlives_event_loops() -> None:
    replicas, router = made(2)

    async def leave() -> None:
        task = asyncio.create_task(router.generate(ask()))
        await asyncio.sleep(1.5)
        assert not task.done()

    for _ in range(3):
        run_in_virtual_time(leave())
        request = ask()
        whole(request, run_in_virtual_time(router.generate(request)))
    assert not any(one.running for one in replicas)
    assert router.gauges()["waiting"] == 0

"""The router under deaths, hangs, cancellations, aborts and deadlines at any time, in any order."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlframe.requests import Completion, Request
from rlframe.testing.virtual_time import run_in_virtual_time
from rlframe_plugins.rollouts.router import Router
from tests.unit.plugins.rollouts.sim_replica import SimReplica, ask, expected, made, whole


def happen(
    what: str,
    replica: SimReplica,
    task: asyncio.Task[Completion],
    router: Router,
    request: Request,
) -> None:
    if what == "cancel":
        task.cancel()
    elif what == "abort":
        router.abort(request.request_id)
    elif what == "die":
        replica.die()
    elif what == "rise":
        replica.rise()
    else:
        replica.hangs = replica.alive


EVENT = st.tuples(
    st.floats(0.05, 20.0),
    st.integers(0, 2),
    st.sampled_from(["die", "rise", "hang", "cancel", "abort"]),
    st.integers(0, 11),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    events=st.lists(EVENT, max_size=12),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    deadlines=st.lists(st.one_of(st.none(), st.floats(0.0, 30.0)), min_size=12, max_size=12),
    streams=st.booleans(),
)
def test_each_request_is_answered_once_whatever_happens(
    events: list[tuple[float, int, str, int]],
    lengths: list[int],
    deadlines: list[float | None],
    streams: bool,
) -> None:
    """Deaths, hangs, returns, cancellations, aborts and deadlines at any time, in any order."""
    replicas, router = made(3, check_s=0.5, losses=20)
    for one in replicas:
        one.streams = streams
    requests = [ask(n, i % 3, f"s{i}", deadlines[i]) for i, n in enumerate(lengths)]
    stopped: Counter[str] = Counter()

    async def go() -> list[Completion | BaseException]:
        tasks = [asyncio.create_task(router.generate(request)) for request in requests]
        now = 0.0
        for when, number, what, chosen in sorted(events):
            await asyncio.sleep(when - now)
            now = when
            which = chosen % len(requests)
            stopped[requests[which].request_id] += what == "abort"
            happen(what, replicas[number], tasks[which], router, requests[which])
            busy = Counter(key for one in replicas for key in one.running if one.alive)
            assert all(count == 1 for count in busy.values())
        await asyncio.sleep(1)
        for one in replicas:
            one.rise()
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancels = any(what == "cancel" for _, _, what, _ in events)
    for request, got in zip(requests, run_in_virtual_time(go()), strict=True):
        if isinstance(got, asyncio.CancelledError) and cancels:
            continue
        assert isinstance(got, Completion)
        may_end = bool(stopped[request.request_id]) or request.deadline_s is not None
        if got.finish_reason == "length" or not may_end:
            whole(request, got)
        assert list(got.token_ids) == expected(request, len(got.token_ids))
    assert not any(one.running for one in replicas)
    assert router.gauges()["waiting"] == 0

"""What an environment raised is tried again as for rewards; then it ends the run or is left out."""

from __future__ import annotations

import pytest

from rlframe import Algorithm
from rlframe.collecting.collector import Collector
from rlframe.errors import EngineError, RolloutError
from rlframe.interfaces.data import Environment
from rlframe.requests import Episode, Row, Sampling, Segment
from rlframe.rewards import Scorer
from rlframe.timeline import SpanLog
from tests.unit.collecting.routed import Routed


class Flaky(Environment):
    """The second episode of each group breaks so many times, by ``error`` or by a ``fault``."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        super().__init__(None, None)
        self.failures, self.error = failures, error
        self.tried: dict[int, int] = {}

    async def run(self, row, request, generate):
        tried = self.tried[request.episode_id] = self.tried.get(request.episode_id, 0) + 1
        segment = Segment([1], [5, 6], [True] * 2, [-1.0] * 2, [0] * 2, [0] * 2)
        if request.request_id.endswith("-1") and tried <= self.failures:
            if self.error is not None:
                raise self.error
            return Episode(request, [segment], "error", fault="its tool is gone")
        return Episode(request, [segment], "stop")


def collect(environment: Environment, log: SpanLog | None = None, **options):
    scorer = Scorer([], retry_wait_s=0.0, **options)
    collector = Collector(Algorithm(samples_per_prompt=2), environment, scorer, Routed(), seed=3)
    if log is not None:
        collector.watch(log, "collector")
    try:
        return collector.collect([Row((1,), {}, n, Sampling()) for n in range(2)]).value
    finally:
        collector.close()


@pytest.mark.parametrize("error", [ConnectionError("gone"), MemoryError("gone"), None])
def test_what_passes_is_played_again(error):
    environment = Flaky(2, error)
    found = collect(environment, retries=2)
    assert [len(group.episodes) for group in found.groups] == [2, 2]
    assert found.skipped_episodes == 0
    assert sorted(environment.tried.values()) == [1, 1, 3, 3]


@pytest.mark.parametrize("retries", [0, 2])
def test_what_stays_ends_the_run_with_fail(retries):
    with pytest.raises(RolloutError, match=r"Flaky.run raised ConnectionError: gone"):
        collect(Flaky(99, ConnectionError("gone")), retries=retries)


@pytest.mark.parametrize("retries", [0, 2])
def test_what_stays_is_left_out_and_counted_with_skip(retries):
    found = collect(Flaky(99, ConnectionError("gone")), retries=retries, on_error="skip")
    assert [len(group.episodes) for group in found.groups] == [1, 1]
    assert found.skipped_episodes == 2
    assert "gone" in found.fault


def test_an_error_of_the_rollout_engine_stays_what_it_is():
    environment = Flaky(99, EngineError("the engine is gone"))
    with pytest.raises(EngineError, match="the engine is gone"):
        collect(environment, retries=2, on_error="skip")
    assert set(environment.tried.values()) == {1}


def test_playing_and_scoring_are_in_the_timeline():
    log = SpanLog()
    collect(Flaky(0), log)
    assert {(s.role, s.stage) for s in log.take().spans} == {
        ("collector", "play"),
        ("collector", "reward"),
    }

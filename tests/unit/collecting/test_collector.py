"""An environment's mistakes are one line that names it; groups come back whole."""

from __future__ import annotations

import pytest

from rlframe import Algorithm
from rlframe.collecting.collector import Collector, episode_seed
from rlframe.errors import RolloutError
from rlframe.interfaces.data import Environment
from rlframe.requests import Episode, Row, Sampling, Segment
from rlframe.rewards import Scorer
from rlframe.rewards.function import FunctionReward
from rlframe.rewards.scorer import WeightedReward
from tests.unit.collecting.routed import Routed


class Answers(Environment):
    """Answers without asking a policy."""

    made = staticmethod(lambda request: None)

    def __init__(self):
        super().__init__(None, None)

    async def run(self, row, request, generate):
        return self.made(request)


def segment(**changes):
    lists = {
        "response_ids": [5, 6],
        "response_mask": [True, True],
        "logprobs": [-1.0, -1.0],
        "versions": [0, 0],
        "turn_ids": [0, 0],
    }
    return Segment(prompt_ids=[1], **{**lists, **changes})


def abstains(response):
    """A reward that has nothing to say."""


def collect(made, rows=2, rewards=()):
    environment = Answers()
    environment.made = made
    collector = Collector(
        Algorithm(samples_per_prompt=2), environment, Scorer(rewards), client=Routed(), seed=3
    )
    try:
        return collector.collect([Row((1,), {}, n, Sampling()) for n in range(rows)]).value
    finally:
        collector.close()


def raises(request):
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (raises, r"Answers\.run raised KeyError: 'mine' \(.*test_collector\.py:\d+\)"),
        (lambda request: None, r"Answers\.run returned NoneType: return an Episode"),
        (lambda request: Episode(request, [], "stop"), "without segments"),
        (
            lambda request: Episode(request, [segment(logprobs=[-1.0])], "stop"),
            "2 response_ids but 1 logprobs",
        ),
    ],
)
def test_a_mistake_of_an_environment_is_one_line(made, message):
    with pytest.raises(RolloutError, match=message):
        collect(made)


def test_an_episode_that_no_reward_scored_leaves_its_group():
    rewards = [WeightedReward("silent", FunctionReward(abstains, "silent"))]
    found = collect(lambda request: Episode(request, [segment()], "stop"), rewards=rewards)
    assert not found.groups
    assert found.failed == {n: "no episode of the group was scored" for n in range(2)}


def test_seeds_differ_by_run_group_and_position():
    seeds = {episode_seed(r, g, p) for r in range(3) for g in range(3) for p in range(3)}
    assert len(seeds) == 27


def test_without_any_reward_every_episode_stays():
    """A reward model scores them later, or the method reads none."""
    found = collect(lambda request: Episode(request, [segment()], "stop"))
    assert [len(group.episodes) for group in found.groups] == [2, 2]


def test_what_the_router_counted_since_the_last_answer_comes_with_the_groups():
    """And how things stand there; nothing is told twice."""
    environment, client = Answers(), Routed()
    environment.made = lambda request: Episode(request, [segment()], "stop")
    collector = Collector(Algorithm(), environment, Scorer([]), client, seed=3)
    found = []
    for number, retries in enumerate((2.0, 2.0, 5.0)):
        client.counters, client.gauges = {"retries": retries}, {"replicas_up": 3.0 - number}
        found.append(collector.collect([Row((1,), {}, number, Sampling())]).value)
    collector.close()
    assert [one.routed for one in found] == [{"retries": n} for n in (2.0, 0.0, 3.0)]
    assert [one.router for one in found] == [{"replicas_up": n} for n in (3.0, 2.0, 1.0)]

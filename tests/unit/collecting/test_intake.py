"""Prompts in play: what is started, what comes back, what is turned down, what is saved."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from rlframe.batching.batch import Batch
from rlframe.collecting.buffer import Buffer
from rlframe.collecting.collected import Collected
from rlframe.collecting.entry import EpisodeSummary, GroupSummary
from rlframe.collecting.intake import Intake
from rlframe.errors import TrainingError
from rlframe.requests import Row, Sampling


def entry(group: int, version: int = 0):
    episode = EpisodeSummary(group, True, 1.0, {}, 3, "stop", 1, (version, version))
    return GroupSummary(group, f"file:{group}", (episode,)).at(Batch({}, 1))


class FakePrompts:
    sampling = Sampling()

    def __init__(self):
        self.drawn = 0

    def draw(self, count):
        first, self.drawn = self.drawn, self.drawn + count
        return [
            Row((1, 2), {"a": i}, i, self.sampling, f"file:{i}")
            for i in range(first, first + count)
        ]


class FakePlayer:
    """Ends groups when it is told to, or all at once."""

    def __init__(self, refuse=()):
        self.playing: list[int] = []
        self.refuse, self.calls = set(refuse), []
        self.ready: list[int] = []

    def collect(self, rows):
        return self._answer([row.group_id for row in rows])

    def turn(self, rows, at_least, wait_s):
        self.calls.append(([row.group_id for row in rows], at_least))
        self.playing += [row.group_id for row in rows]
        ended = [g for g in self.playing if g in self.ready]
        while len(ended) < at_least and self.ready == ["any"]:
            ended.append(self.playing[len(ended)])
        self.playing = [g for g in self.playing if g not in ended]
        return self._answer(ended)

    def _answer(self, groups):
        future = Future()
        future.set_result(
            Collected(
                [entry(g) for g in groups if g not in self.refuse],
                [g for g in groups if g in self.refuse],
            )
        )
        return future


def intake(player, **more):
    options = {"max_refills": 2, "method": "Mine", "tell": lambda text: None, **more}
    return Intake(FakePrompts(), player, Buffer(), **options)


def test_fill_draws_again_for_what_is_refused():
    made = intake(FakePlayer(refuse=[1]))
    made.fill(3)
    assert [e.group_id for e in made._buffer] == [0, 2, 3]
    assert made.take_figures()["collect/refused_groups"] == 1
    assert made.take_figures()["collect/refused_groups"] == 0


def test_fill_gives_up_with_what_it_saw():
    made = intake(FakePlayer(refuse=range(100)))
    with pytest.raises(TrainingError, match=r"after 3 draws only 0 of 2 .* Mine.accept refused 6"):
        made.fill(2)


def test_started_groups_are_open_until_they_come_back():
    player = FakePlayer()
    made = intake(player)
    made.start(3, 7)
    assert (len(made), made.played, made.born) == (3, [0, 1, 2], {0: 7, 1: 7, 2: 7})
    player.ready = [1]
    made.receive(1, 7, 3, 10.0)
    assert made.played == [0, 2]
    assert [e.group_id for e in made._buffer] == [1]
    made.forget([1])
    assert made.born == {0: 7, 2: 7}


def test_a_refused_group_is_replaced_at_once_under_the_weights_of_now():
    player = FakePlayer(refuse=[0])
    made = intake(player)
    made.start(2, 1)
    player.ready = ["any"]
    made.receive(2, 5, 2, 10.0)
    assert [e.group_id for e in made._buffer] == [1, 2]
    assert made.born == {1: 1, 2: 5}


def test_waiting_has_a_limit_that_names_who_is_waited_for():
    made = intake(FakePlayer())
    made.start(2, 0)
    with pytest.raises(TrainingError, match=r"no group ended in 0 s .* prompt 0 \(file:0\)"):
        made.receive(1, 0, 2, 0.0)


def test_too_many_refusals_end_a_stream_too():
    player = FakePlayer(refuse=range(100))
    made = intake(player)
    made.start(2, 0)
    player.ready = ["any"]
    with pytest.raises(TrainingError, match="accept refused"):
        made.receive(2, 0, 2, 10.0)


def test_open_prompts_are_saved_and_played_again_first():
    made = intake(FakePlayer())
    made.start(2, 0)
    state = made.state_dict()
    player = FakePlayer()
    again = intake(player)
    again.load_state_dict(state)
    again._prompts.drawn = 2
    assert again.state_dict() == state
    again.start(3, 4)
    assert player.calls[0][0] == [0, 1, 2]
    assert again.born == {0: 4, 1: 4, 2: 4}
    row = again._open[0]
    assert (row.prompt_ids, row.columns, row.source) == ((1, 2), {"a": 0}, "file:0")


def test_a_steps_figures_have_what_its_answers_say_of_routers():
    """Counts add up, gauges are those of the last answer."""
    player = FakePlayer(refuse=[0])
    said = iter([({"retries": 1.0}, {"waiting": 4.0}), ({"retries": 2.0}, {"waiting": 0.0})])
    plain = player._answer

    def answer(groups):
        future = plain(groups)
        future.result().routed, future.result().router = next(said)
        return future

    player._answer = answer
    made = intake(player)
    made.fill(1)
    figures = made.take_figures()
    assert figures["collect/router/retries"] == 3
    assert figures["collect/router/waiting"] == 0
    assert "collect/router/retries" not in made.take_figures()

"""Programs over the package openai itself: what it sends is served, or refused by name."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.unit.chat_templates import TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs import openai_programs as programs
from tests.unit.plugins.envs.playing import Policy, environment, play, request, row

pytest.importorskip("openai", reason="the package openai is not installed")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("t"), TEMPLATES["chatml"])


@pytest.fixture
def run(tokenizer):
    def run_once(user, policy=None, **options):
        env = environment(user, tokenizer, **{"max_turns": 2000, **options})
        try:
            return play(env, policy or Policy(tokenizer, ["hey"]))
        finally:
            env.close()

    return run_once


def test_the_client_is_openais_own():
    import openai

    from rlframe_plugins.envs.tools.client import make_client

    assert isinstance(make_client("http://127.0.0.1:9/v1", "sk"), openai.AsyncOpenAI)


@pytest.mark.parametrize(
    ("user", "turns"),
    [
        (programs.AtOnce, 20),
        (programs.LogProbs, 1),
        (programs.Parts, 1),
        (programs.OtherRoutes, 0),
        (programs.Sync, 1),
    ],
)
def test_a_program_is_served(user, turns, run):
    episode = run(user)
    assert (episode.earned, episode.figures["turns"]) == (1.0, turns)
    assert sum(sum(s.response_mask) for s in episode.segments) == 4 * turns


def test_many_requests(run):
    episode = run(programs.Many)
    assert (episode.earned, episode.figures["turns"], len(episode.segments)) == (1.0, 200, 200)


def test_a_stream_of_calls(run, tokenizer):
    episode = run(programs.Streams, Policy(tokenizer, ["[look('a')]"]))
    assert (episode.earned, episode.figures["tool_calls"]) == (1.0, 1)


def test_what_the_policy_cannot_do_is_refused_by_name(run):
    episode = run(programs.Unable)
    assert episode.earned == len(programs.UNABLE)
    assert episode.figures["turns"] == 0


class Slow(Policy):
    """Its first ``quick`` answers come at once, the next when it is told, the others at once."""

    def __init__(self, tokenizer, quick, waits):
        super().__init__(tokenizer, ["hey"])
        self.quick, self.waits, self.ended, self.count = quick, waits, [], 0

    async def __call__(self, asked):
        self.count += 1
        if self.count == self.quick + 1:
            try:
                await self.waits()
            except asyncio.CancelledError:
                self.ended.append(asked.request_id)
                raise
        return await super().__call__(asked)


def test_a_client_that_waits_no_longer_may_ask_again(run, tokenizer):
    """The first answer comes after the client gave up; what it then asks is answered."""

    async def next_one():
        with contextlib.suppress(TimeoutError):  # what if the first never came so far?
            async with asyncio.timeout(20):
                while slow.count < 2:
                    await asyncio.sleep(0.01)

    slow = Slow(tokenizer, 0, next_one)
    episode = run(programs.Impatient, slow)
    assert episode.earned == 1.0
    assert all(len(s.response_ids) == 4 for s in episode.segments)


def test_what_is_asked_when_the_program_ends_is_no_part_of_it(tokenizer, tmp_path):
    env = environment(programs.Unfinished, tokenizer)

    async def for_ever():
        (tmp_path / "asked").touch()
        await asyncio.Event().wait()

    slow = Slow(tokenizer, 1, for_ever)

    async def both():
        episode = await env.run(row(asked=str(tmp_path / "asked")), request(), slow)
        while not slow.ended:
            await asyncio.sleep(0.01)
        return episode

    episode = asyncio.run(asyncio.wait_for(both(), 120))
    env.close()
    assert (episode.earned, episode.figures["turns"], len(episode.segments)) == (1.0, 1, 1)

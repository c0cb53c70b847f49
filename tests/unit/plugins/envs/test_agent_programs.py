"""Programs of their own as agents: exact tokens behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio

import pytest

from rlframe.errors import RolloutError
from rlframe_plugins.envs.tools.environment import ToolsEnvironment
from tests.unit.chat_templates import REWRITING, TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs import programs
from tests.unit.plugins.envs.playing import Policy, environment, play, request, row


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("t"), TEMPLATES["chatml"])


@pytest.fixture
def run(tokenizer):
    def run_once(user, replies, tokenizer=tokenizer, reason="stop", **options):
        env = environment(user, tokenizer, **options)
        policy = Policy(tokenizer, replies, reason)
        try:
            return play(env, policy), policy
        finally:
            env.close()

    return run_once


def check_rows(episode, policy):
    """Each completion stands in a row right after the tokens that it was asked with."""
    rows = [(*s.prompt_ids, *s.response_ids) for s in episode.segments]
    for asked, given in zip(policy.asked, policy.given, strict=True):
        whole = asked.prompt_ids + given.token_ids
        assert any(row[: len(whole)] == whole for row in rows)
    sampled = sum(sum(s.response_mask) for s in episode.segments)
    assert sampled == sum(len(one.token_ids) for one in policy.given)


def test_a_conversation_is_one_row(run):
    episode, policy = run(programs.Chatter, ["a b", " c\n", "d"])
    assert (episode.earned, episode.finish_reason, episode.text) == (0.75, "stop", "d")
    assert len(episode.segments) == 1
    assert episode.figures["turns"] == 3
    check_rows(episode, policy)
    assert len({asked.request_id for asked in policy.asked}) == 3
    assert len({asked.sampling.seed for asked in policy.asked}) == 3


def test_tool_calls_are_openais(run, tokenizer):
    episode, policy = run(programs.Caller, ["[look('a'), look(at='b')]", "found"])
    assert (episode.earned, len(episode.segments)) == (1.0, 1)
    check_rows(episode, policy)
    text = tokenizer.decode(episode.segments[0].prompt_ids + episode.segments[0].response_ids)
    assert "Tools: [{" in text
    assert "[look('a'), look(at='b')]<|im_end|>\n<|im_start|>tool\naa<|im_end|>" in text


def test_branches_are_rows_of_their_own(run, tokenizer):
    episode, policy = run(programs.Tree, ["base", "x", "y", "z"])
    check_rows(episode, policy)
    assert len(episode.segments) == 3 + (episode.figures["branches"] == 2)
    pairs = [p for s in episode.segments for p in zip(s.response_ids, s.response_mask, strict=True)]
    said = tokenizer.decode([token for token, trained in pairs if trained])
    assert sorted(said.replace("<|im_end|>", "")) == sorted("basexyz")


@pytest.mark.parametrize("user", [programs.Refused])
def test_what_is_no_request_is_refused(user, run):
    episode, policy = run(user, ["x"])
    assert (episode.earned, policy.asked) == (1.0, [])


def test_streams(run):
    episode, _ = run(programs.Streamer, ["hey"])
    assert episode.earned == {"said": 1.0, "usage": 4, "done": 1.0}


@pytest.mark.parametrize("limit", [{"max_turns": 4}, {"max_tokens": 200}])
def test_limits_end_it(limit, run):
    episode, policy = run(programs.Endless, ["say"], **limit)
    assert (episode.finish_reason, episode.earned) == ("length", 0.0)
    assert 1 <= len(policy.asked) < 8
    check_rows(episode, policy)


def test_a_program_that_raises(run):
    with pytest.raises(
        RolloutError, match=r"Raises.run raised KeyError: 'my own fault' \(.*programs"
    ):
        run(programs.Raises, ["x"])
    zero, _ = run(programs.Raises, ["x"], on_error="zero")
    assert (zero.earned, zero.figures["env_errors"]) == (0.0, 1)
    assert run(programs.Raises, ["x"], on_error="skip")[0].fault


def test_a_program_that_asks_nothing(run):
    episode, _ = run(programs.Silent, ["x"])
    assert (episode.earned, episode.segments[0].response_ids) == (None, [])


def test_the_clients_limit_and_the_reward_of_the_class(run):
    episode, policy = run(programs.Rewarded, ["abc"])
    assert policy.asked[0].sampling.max_new_tokens == 2
    assert episode.earned == pytest.approx(0.3)


def test_rewards_are_known_before_the_run():
    gives = {u.__name__: ToolsEnvironment.adapt(u).gives_rewards
             for u in (programs.Chatter, programs.Caller, programs.Silent)}  # fmt: skip
    assert gives == {"Chatter": True, "Caller": True, "Silent": False}


def test_rewritten_history_is_a_row_of_its_own(run, tmp_path):
    own = byte_tokenizer(tmp_path, REWRITING["merges"])
    episode, policy = run(programs.Chatter, ["a", "b", "c"], own)
    assert (episode.figures["rewrites"], len(episode.segments)) == (2, 3)
    check_rows(episode, policy)


def test_the_engines_error_is_the_runs(tokenizer):
    env = environment(programs.Chatter, tokenizer)

    async def fails(asked):
        raise RolloutError("the engine is gone")

    with pytest.raises(RolloutError, match="the engine is gone"):
        play(env, fails)
    env.close()


def test_many_programs_at_once(tokenizer):
    env = environment(programs.Chatter, tokenizer, processes=12)

    async def together():
        policies = [Policy(tokenizer, [f"{n}"]) for n in range(36)]
        return await asyncio.gather(*(env.run(row(), request(), p) for p in policies))

    for n, episode in enumerate(asyncio.run(together())):
        assert (episode.text, episode.earned) == (str(n), 0.75)
    env.close()

"""Classes as environments: tools, limits, processes that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rlframe.errors import ConfigError, PluginError, RolloutError
from tests.unit.chat_templates import REWRITING, TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs import users
from tests.unit.plugins.envs.playing import Policy, environment, play, request, row


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("t"), TEMPLATES["chatml"])


@pytest.fixture(scope="module")
def made(tokenizer):
    """Environments by class and options; each has its processes for the whole module."""
    found = {}

    def make(user, **options):
        key = user, tuple(options.items())
        if key not in found:
            found[key] = environment(user, tokenizer, **options)
        return found[key]

    yield make
    for one in found.values():
        one.close()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(pid):
    for _ in range(600):
        if not alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def answers(episode):
    return [one["answer"] for turn in episode.trace for one in turn.get("tools", [])]


def test_a_game_by_tools(made, tokenizer):
    policy = Policy(tokenizer, ["[guess(3)]", "[guess(8), slowly(number=6)]", "[guess(5)]", "x"])
    episode = play(made(users.Game), policy)
    assert answers(episode) == ["higher", "lower", "lower", "right"]
    assert (episode.earned, episode.finish_reason, episode.text) == (1.0, "stop", "[guess(5)]")
    wanted = {"turns": 3, "tool_calls": 4, "tool_errors": 0, "bad_calls": 0, "tool_timeouts": 0}
    assert episode.figures.items() >= wanted.items()
    (segment,) = episode.segments
    whole = (*segment.prompt_ids, *segment.response_ids)
    for asked, given in zip(policy.asked, policy.given, strict=True):
        assert whole[: len(asked.prompt_ids) + len(given.token_ids)] == (
            asked.prompt_ids + given.token_ids
        )
    assert sum(segment.response_mask) == sum(len(one.token_ids) for one in policy.given)
    assert sorted(set(segment.turn_ids)) == [0, 1, 2]
    rewards = [(t, r) for t, r in zip(segment.turn_ids, segment.token_rewards, strict=True) if r]
    assert rewards == [(0, -0.25), (1, -0.25)]
    ends = [n for n, token in enumerate(segment.response_ids)
            if token == tokenizer.eos_token_id and segment.response_mask[n]]  # fmt: skip
    assert [bool(segment.token_rewards[n]) for n in ends] == [True, True, False]


def test_what_a_tool_answers_stands_in_the_context(made, tokenizer):
    policy = Policy(tokenizer, ["[guess(3)]", "[guess(5)]"])
    episode = play(made(users.Game), policy)
    text = tokenizer.decode(episode.segments[0].prompt_ids + episode.segments[0].response_ids)
    assert text == (
        "<|im_start|>user\nbegin<|im_end|>\n<|im_start|>assistant\n[guess(3)]<|im_end|>\n"
        "<|im_start|>tool\nhigher<|im_end|>\n<|im_start|>assistant\n[guess(5)]<|im_end|>"
    )


def test_each_episode_has_a_state_of_its_own_hundreds_at_once(made, tokenizer):
    env = made(users.Game, processes=24)

    async def together():
        policies = [Policy(tokenizer, ["[guess(1)]"] * (n % 3 + 1) + ["[calls()]", "."])
                    for n in range(150)]  # fmt: skip
        episodes = [env.run(row(answer="5"), request(), policy) for policy in policies]
        return await asyncio.gather(*episodes)

    for n, episode in enumerate(asyncio.run(together())):
        assert answers(episode)[-1] == str(n % 3 + 1)


def test_text_is_answered_by_step(made, tokenizer):
    policy = Policy(tokenizer, ["hey", "bye"])
    episode = play(made(users.Talk), policy, row())
    assert episode.earned == {"polite": 1.0, "short": 0.5}
    assert (episode.figures["turns"], episode.text) == (2, "bye")
    assert "you said 3" in tokenizer.decode(episode.segments[0].response_ids)


def test_a_message_without_a_call_ends_it(made, tokenizer):
    episode = play(made(users.Game), Policy(tokenizer, ["I give up"]))
    assert (episode.finish_reason, episode.earned, episode.figures["turns"]) == ("stop", 0.0, 1)


@pytest.mark.parametrize("reason", ["length", "abort", "error"])
def test_a_message_that_was_cut_is_no_call(reason, made, tokenizer):
    episode = play(made(users.Game), Policy(tokenizer, ["[guess(5)]"], reason))
    assert (episode.finish_reason, episode.figures["tool_calls"]) == (reason, 0)


def test_turns_are_limited(made, tokenizer):
    policy = Policy(tokenizer, ["[guess(1)]"])
    episode = play(made(users.Game, max_turns=3), policy)
    assert (episode.finish_reason, len(policy.asked)) == ("length", 3)
    assert episode.segments[0].response_mask[-1], "nothing follows the last message"


def test_the_context_is_limited(made, tokenizer):
    policy = Policy(tokenizer, ["[guess(1)]"])
    episode = play(made(users.Game, max_tokens=200), policy)
    assert episode.finish_reason == "length"
    longest = max(len(a.prompt_ids) + a.sampling.max_new_tokens for a in policy.asked)
    assert longest == 200
    with pytest.raises(RolloutError, match=r"first messages have .* raise env.max_tokens"):
        play(made(users.Game, max_tokens=10), Policy(tokenizer, ["x"]))


def test_what_a_tool_raises_goes_to_the_model_and_is_counted(made, tokenizer):
    replies = ["[boom()]", "[leave()]", "[nothing()]", "[flood(size='x')]", "[boom(", "."]
    episode = play(made(users.Bad), Policy(tokenizer, replies), row())
    told = answers(episode)
    assert told[0] == "Error: LookupError: nothing there"
    assert told[1] == "Error: SystemExit: 3"
    assert told[2].startswith("Error: there is no tool 'nothing'. Tools: boom, leave, flood")
    assert "'size' must be \"integer\"" in told[3]
    assert told[4].startswith("Error: the call cannot be read")
    assert (episode.figures["tool_errors"], episode.figures["bad_calls"]) == (4, 1)
    assert "users.py:" in episode.trace[0]["tools"][0]["raised_at"]


def test_floods_are_cut(made, tokenizer):
    policy = Policy(tokenizer, ["[flood(3000000)]", "[odd()]", "."])
    episode = play(made(users.Bad, max_tool_output=20), policy, row())
    told = answers(episode)
    assert told[0] == "y" * 20 + "\n[2999980 more characters were cut]"
    assert told[1].startswith('{"a": [1, null], "é"\n[')
    assert episode.figures["tool_cuts"] == 2


def test_a_call_that_takes_too_long_is_interrupted_and_the_state_stays(made, tokenizer):
    env = made(users.Bad, tool_timeout_s=0.3)
    episode = play(env, Policy(tokenizer, ["[pid()]", "[sleep()]", "[pid()]", "."]), row())
    first, late, last = answers(episode)
    assert late == "Error: the call took more than 0.3 s and was ended"
    assert first == last
    assert (episode.figures["tool_timeouts"], episode.finish_reason) == (1, "stop")


def test_all_calls_together_are_limited(made, tokenizer):
    env = made(users.Bad, tool_timeout_s=5.0, tool_total_s=0.3)
    episode = play(env, Policy(tokenizer, ["[sleep()]", "[pid()]", "."]), row())
    assert answers(episode)[1] == "Error: the time for tools is used up (0.3 s)"


def test_a_call_that_lets_no_signal_in_ends_with_its_process(made, tokenizer, monkeypatch):
    monkeypatch.setattr("rlframe_plugins.envs.tools.pool._GRACE_S", 0.5)
    env = made(users.Bad, tool_timeout_s=0.3)
    episode = play(env, Policy(tokenizer, ["[pid()]", "[stuck()]", "never"]), row())
    assert (episode.figures["turns"], episode.figures["tool_timeouts"]) == (2, 1)
    assert asyncio.run(gone(int(answers(episode)[0])))


def test_a_process_that_dies_is_retried_then_left_out(made, tokenizer, tmp_path):
    policy = Policy(tokenizer, ["[die()]"])
    episode = play(made(users.Bad, retries=2), policy, row())
    assert len(policy.asked) == 3
    assert (episode.finish_reason, episode.earned) == ("error", None)
    assert "the environment's process ended in call" in episode.fault
    assert episode.figures == {"env_deaths": 1.0}
    again = play(made(users.DiesOnce), Policy(tokenizer, ["x"]), row(prompt=str(tmp_path / "f")))
    assert (again.finish_reason, again.fault) == ("stop", "")


def test_processes_that_are_killed_from_outside(made, tokenizer):
    """kill -9 of an episode's process, then of the one that they are forked from."""
    env = made(users.Bad, tool_timeout_s=30.0, retries=2)

    class Killer(Policy):
        async def __call__(self, asked):
            done = await super().__call__(asked)
            if len(self.asked) in (2, 4):
                text = self.tokenizer.decode(asked.prompt_ids)
                pid = int(text.split("tool\n")[1].split("<")[0])
                target = pid if len(self.asked) == 2 else env._pool._zygote.pid
                os.kill(target, signal.SIGKILL)
            return done

    policy = Killer(tokenizer, ["[pid()]", "[pid()]", "[pid()]", "[pid()]", "[pid()]", "."])
    episode = play(env, policy, row())
    assert (episode.finish_reason, episode.fault) == ("stop", "")
    assert len(policy.asked) == 6


def test_nothing_is_left_after_close(tokenizer):
    env = environment(users.Bad, tokenizer)
    episode = play(env, Policy(tokenizer, ["[pid()]", "."]), row())
    pids = [int(answers(episode)[0]), env._pool._zygote.pid]
    env.close()
    assert asyncio.run(gone(pids[0]))
    assert not alive(pids[1])


def test_an_episode_that_is_cancelled_leaves_no_process(made, tokenizer):
    env = made(users.Bad)

    async def cancel():
        reached, pids = asyncio.Event(), []

        async def wait(asked):
            done = await policy(asked)
            if len(policy.asked) == 2:
                text = tokenizer.decode(asked.prompt_ids)
                pids.append(int(text.split("tool\n")[1].split("<")[0]))
                reached.set()
                await asyncio.Event().wait()
            return done

        policy = Policy(tokenizer, ["[pid()]"])
        task = asyncio.ensure_future(env.run(row(), request(), wait))
        await reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await gone(pids[0])

    assert asyncio.run(cancel())


@pytest.mark.parametrize("answer", ["reset", "reward"])
def test_a_class_that_raises_ends_the_run_or_not(answer, made, tokenizer):
    policy = Policy(tokenizer, ["x"])
    with pytest.raises(
        RolloutError, match=rf"Broken.{answer} raised ValueError: no {answer} .*users"
    ):
        play(made(users.Broken), policy, row(answer=answer))
    skipped = play(made(users.Broken, on_error="skip"), policy, row(answer=answer))
    assert skipped.fault
    assert skipped.finish_reason == "error"
    zero = play(made(users.Broken, on_error="zero"), policy, row(answer=answer))
    if answer == "reward":
        assert (zero.earned, zero.fault, zero.figures["env_errors"]) == (0.0, "", 1)


def test_the_policys_own_error_passes(made):
    async def fails(asked):
        raise RolloutError("the engine is gone")

    with pytest.raises(RolloutError, match="the engine is gone"):
        play(made(users.Game), fails)


@pytest.fixture(scope="module")
def stripping(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("s"), REWRITING["always-strips"])


def test_a_template_that_rewrites_history_is_bridged(stripping):
    env = environment(users.Talk, stripping)
    policy = Policy(stripping, ["<think>\nso\n</think>\n\nhey", "bye"])
    episode = play(env, policy, row())
    env.close()
    assert episode.figures["rewrites"] == 1
    assert [s.prompt_ids for s in episode.segments] == [list(a.prompt_ids) for a in policy.asked]
    assert [s.response_ids for s in episode.segments] == [list(g.token_ids) for g in policy.given]


def test_or_refused_before_anything_runs(stripping):
    with pytest.raises(ConfigError, match="on_rewrite=error: the chat template rewrites history"):
        environment(users.Talk, stripping, on_rewrite="error")


def test_tools_are_told_by_the_template_or_a_system_message(tokenizer, tmp_path):
    for name, wanted in (("chatml", "Tools: [{"), ("mistral", "")):
        own = byte_tokenizer(tmp_path, TEMPLATES[name])
        env = environment(users.Game, own, describe=True, tool_parser="hermes")
        if name == "mistral":  # neither tools nor a system message: it says so
            with pytest.raises(Exception, match="only user and assistant"):
                play(env, Policy(own, ["x"]))
        else:
            policy = Policy(own, ["x"])
            play(env, policy)
            assert wanted in own.decode(policy.asked[0].prompt_ids)
        env.close()
    own = byte_tokenizer(tmp_path, TEMPLATES["llama3"])
    env = environment(users.Game, own, describe=True)
    policy = Policy(own, ["x"])
    play(env, policy)
    env.close()
    text = own.decode(policy.asked[0].prompt_ids)
    assert "You may call these functions:" in text
    assert '"guess"' in text


def test_plain_messages_stand_as_they_are(tokenizer):
    env = environment(users.Game, tokenizer, describe=True, template="plain")
    policy = Policy(tokenizer, ["[guess(3)]", "."])
    episode = play(env, policy)
    env.close()
    assert tokenizer.decode(policy.asked[0].prompt_ids) == "begin"
    assert tokenizer.decode(episode.segments[0].response_ids) == (
        "[guess(3)]<|im_end|>higher.<|im_end|>"
    )


def test_a_class_that_cannot_be_sent_or_described_is_told(tokenizer):
    class NoTypes:
        def look(self, x):
            return x

    with pytest.raises(PluginError, match="NoTypes.look: parameter 'x' has no type"):
        environment(NoTypes, tokenizer)


def test_a_class_of_a_notebook_travels_by_value(tokenizer):
    class Local:
        def reset(self):
            return "go"

        def reward(self):
            return 0.5

    env = environment(Local, tokenizer)
    assert play(env, Policy(tokenizer, ["x"]), row()).earned == 0.5
    env.close()

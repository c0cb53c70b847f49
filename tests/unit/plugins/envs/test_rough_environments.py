"""Environments that fork, flood, hang and raise: one clear word each, and nothing is left."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rlframe.errors import PluginError, RolloutError
from tests.unit.chat_templates import TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs import users
from tests.unit.plugins.envs.playing import Policy, environment, play, request, row
from tests.unit.plugins.envs.test_tools_environment import answers, gone


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("t"), TEMPLATES["chatml"])


@pytest.fixture
def made(tokenizer):
    found = []

    def make(user, **options):
        found.append(environment(user, tokenizer, **options))
        return found[-1]

    yield make
    for one in found:
        one.close()


def test_a_tool_that_forks_answers_once(made, tokenizer, tmp_path):
    policy = Policy(tokenizer, ["[comes_back()]", "[comes_back()]", "[nothing()]", "."])
    episode = play(made(users.Forks), policy, row(path=str(tmp_path / "pids")))
    assert answers(episode)[:2] == ["parent", "parent"]
    assert (episode.finish_reason, episode.figures["tool_calls"]) == ("stop", 3)


@pytest.mark.parametrize("then", ["[die()]", "."])
def test_what_a_tool_started_ends_with_its_episode(then, made, tokenizer, tmp_path):
    path = tmp_path / "pids"
    env = made(users.Forks, retries=0)
    episode = play(env, Policy(tokenizer, ["[leaves()]", then]), row(path=str(path)))
    assert episode.finish_reason == ("error" if "die" in then else "stop")
    for pid in map(int, path.read_text().split()):
        assert asyncio.run(gone(pid))


def test_answers_of_any_size_and_kind(made, tokenizer):
    policy = Policy(tokenizer, ["[hundred()]", "[nested()]", "[binary()]", "."])
    episode = play(made(users.Heavy, max_tool_output=20, tool_timeout_s=60.0), policy, row())
    hundred, nested, binary = answers(episode)
    assert hundred == "x" * 20 + "\n[99999980 more characters were cut]"
    assert nested.startswith('{"a": ["éé')
    assert binary.startswith("b'\\x00\\x01")
    assert (episode.figures["tool_cuts"], episode.figures["tool_errors"]) == (3, 0)


def test_a_class_that_hangs_before_it_begins(made, tokenizer):
    env = made(users.NeverMade, tool_timeout_s=0.2)
    with pytest.raises(RolloutError, match=r"NeverMade.reset took more than 0.2 s"):
        play(env, Policy(tokenizer, ["."]), row())


def test_a_class_that_cannot_be_sent_is_told(tokenizer):
    lock = threading.Lock()

    class Locked:
        def reset(self) -> str:
            with lock:
                return "go"

    with pytest.raises(PluginError, match="env Locked cannot be sent .*_thread.lock") as caught:
        environment(Locked, tokenizer)
    assert "--env my_env.py:Locked" in str(caught.value)


@pytest.mark.parametrize(("on_error", "count"), [("skip", 300), ("zero", 30), ("fail", 30)])
def test_three_hundred_at_once_of_which_a_tenth_raise(on_error, count, made, tokenizer):
    env = made(users.Raises, on_error=on_error)

    async def one(number):
        return await env.run(row(number=number), request(), Policy(tokenizer, ["."]))

    async def every():
        return await asyncio.gather(*map(one, range(count)), return_exceptions=True)

    found = asyncio.run(every())
    bad, good = found[::10], [e for n, e in enumerate(found) if n % 10]
    assert [e.earned for e in good] == [1.0] * (count * 9 // 10)
    if on_error == "fail":
        assert all("Raises.reset raised RuntimeError: number " in str(e) for e in bad)
        assert all(isinstance(e, RolloutError) for e in bad)
    else:
        assert [e.finish_reason for e in bad] == ["error"] * (count // 10)
        assert all(e.figures["env_errors"] == 1 for e in bad)

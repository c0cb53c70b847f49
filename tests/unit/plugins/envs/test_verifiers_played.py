"""Real episodes of the package verifiers: ``make test-verifiers``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from rlframe.errors import ConfigError, PluginError, RolloutError
from rlframe.testing.environment_kit import EnvironmentKit
from rlframe_plugins.data.verifiers import VerifiersDataset
from rlframe_plugins.envs.tools.pool import Pool
from rlframe_plugins.envs.verifiers.environment import VerifiersEnvironment
from tests.unit.chat_templates import TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs.playing import Policy, play, row

pytest.importorskip(
    "verifiers", reason="the package verifiers is not installed: make test-verifiers"
)
TASKSETS = str(Path(__file__).parent / "tasksets")


class Kept(VerifiersEnvironment):
    """Leaves its processes to the next test: to import verifiers takes seconds."""

    pools: ClassVar[dict[str, Pool]] = {}

    def __init__(self, config, tokenizer):
        super().__init__(config, tokenizer)
        self._pool = self.pools.setdefault(repr(self.given), self._pool)

    def close(self):
        self._endpoint.close()


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(TASKSETS)


@pytest.fixture(scope="module", autouse=True)
def _pools():
    yield
    for pool in Kept.pools.values():
        pool.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("t"), TEMPLATES["chatml"])


@pytest.fixture
def played(tokenizer):
    """Play a task of a taskset with a policy that says these, and check its tokens."""

    def once(taskset, replies, number=0, query="", **options):
        rows = VerifiersDataset.open(f"verifiers:{taskset}{query}")
        config = Kept.Config(taskset=taskset, tool_parser="llama", **options)
        env = Kept(config, tokenizer)
        policy = Policy(tokenizer, replies)
        try:
            episode = play(env, policy, row(**rows[number]))
        finally:
            env.close()
        exact(episode, policy)
        return episode, policy

    return once


def exact(episode, policy):
    """What was sampled stands after the very tokens that the policy was asked with."""
    sampled = [pair for done in policy.given for pair in zip(done.token_ids, done.logprobs)]  # noqa: B905
    trained = [(token, logprob) for s in episode.segments
               for token, logprob, mask in zip(s.response_ids, s.logprobs, s.response_mask,
                                               strict=True) if mask]  # fmt: skip
    assert trained == sampled
    rows = [(*s.prompt_ids, *s.response_ids) for s in episode.segments]
    for asked, done in zip(policy.asked, policy.given, strict=True):
        whole = (*asked.prompt_ids, *done.token_ids)
        assert any(one[: len(whole)] == whole for one in rows)


def test_one_turn_is_rewarded_by_the_tasks_own_rewards(played, tokenizer):
    episode, policy = played("rl_letters", ["b"], 1)
    assert episode.earned == {"right": 2.0, "short": 0.5}
    assert (episode.text, episode.finish_reason, len(episode.segments)) == ("b", "stop", 1)
    assert tokenizer.decode(policy.asked[0].prompt_ids).endswith(
        "<|im_start|>user\n1:<|im_end|>\n<|im_start|>assistant\n"
    )
    episode, _ = played("rl_letters", ["much longer"], 1)
    assert episode.earned == {"right": 0.0, "short": 0.0}


def test_a_system_prompt_of_the_taskset(played, tokenizer):
    _, policy = played("rl_letters", ["a"], query="?system=true")
    assert "<|im_start|>system\nBe brief.<|im_end|>" in tokenizer.decode(policy.asked[0].prompt_ids)


def test_turns_with_a_tool(played, tokenizer):
    episode, policy = played("rl-adder", ["[add(a=2, b=1)]", "3"], 2)
    assert episode.earned == {"right": 1.0, "called": pytest.approx(0.1)}
    assert (episode.figures["turns"], episode.figures["tool_calls"]) == (2, 1)
    assert len(episode.segments) == 1
    asked = tokenizer.decode(policy.asked[1].prompt_ids)
    assert "<|im_start|>tool\n3<|im_end|>" in asked
    assert "Add two numbers." in asked


def test_tools_that_fail_flood_and_hang_are_told_of(played, tokenizer):
    replies = ["[fails()]", "[floods()]", "[hangs()]", "[nothing()]", "4"]
    episode, policy = played("rl_adder", replies, max_tool_output=50, tool_timeout_s=1.0)
    assert episode.earned == {"right": 0.0, "called": 0.0}
    last = tokenizer.decode(policy.asked[-1].prompt_ids)
    for told in ("out of order", "2999950 more characters were cut", "took more than 1 s",
                 "there is no tool 'nothing'. Tools: add, fails, floods, hangs"):  # fmt: skip
        assert told in last
    assert len(episode.segments) == 1


def test_an_episode_that_is_cut_by_the_runs_limits_is_still_rewarded(played):
    episode, policy = played("rl_adder", ["[add(a=2, b=1)]"], max_turns=2)
    assert len(policy.asked) == 2
    assert episode.earned == {"right": 0.0, "called": pytest.approx(0.2)}
    episode, _ = played("rl_adder", ["[add(a=2, b=1)]"], max_tokens=900, max_turns=50)
    assert episode.finish_reason == "length"
    assert episode.earned["called"] >= 0.1


def test_an_environment_of_its_own_with_several_agents(played, tokenizer):
    episode, policy = played("rl_talk", ["c", "a"])
    assert episode.earned == {"right": 2.0, "short": 0.5}
    assert len(episode.segments) == 1
    assert "are you sure?" in tokenizer.decode(policy.asked[1].prompt_ids)
    with pytest.raises(RolloutError, match="judge. is not to be trained but asks the policy"):
        played("rl_talk", ["c", "a"], options={"judged": True})


def test_a_fault_of_the_taskset_ends_the_run_or_is_counted(played):
    with pytest.raises(RolloutError, match="TaskError: .*ValueError: no such letter"):
        played("rl_letters", ["fault"])
    episode, _ = played("rl_letters", ["fault"], on_error="zero")
    assert (episode.earned, episode.figures["env_errors"]) == (0.0, 1)
    with pytest.raises(RolloutError, match="the taskset gives no reward"):
        played("rl_endless", ["a"], query="?size=2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taskset": "rl_nothing"}, "taskset 'rl_nothing' not found"),
        ({"options": {"agent": {"harness": {"id": "nothing"}}}}, "harness 'nothing' not found"),
        ({"options": {"agnt": {}}}, "agnt"),
        ({"options": {"taskset": {"sze": 3}}}, "sze"),
    ],
)
def test_a_mistake_in_the_options_is_told(tokenizer, options, message):
    data = VerifiersDataset.open("verifiers:rl_letters")[0] | {"data_source": "rl_nothing"}
    if "taskset" not in options:
        data["data_source"] = "rl_letters"
    given = VerifiersEnvironment.Config(**{"taskset": "rl_letters", **options})
    env = VerifiersEnvironment(given, tokenizer)
    with pytest.raises(PluginError, match=message):
        play(env, Policy(tokenizer, ["a"]), row(**data))
    env.close()


def test_the_rows_of_a_taskset():
    rows = VerifiersDataset.open("verifiers:rl_letters?size=3")
    assert (len(rows), rows[2]["prompt"], rows[2]["task"]["answer"]) == (3, "2:", "c")
    assert rows[0]["data_source"] == "rl_letters"
    assert rows.where(2) == "verifiers:rl_letters: task 2"
    more = VerifiersDataset.open("verifiers:rl_endless?size=5")
    assert [one["prompt"] for one in (more[0], more[4])] == ["0", "4"]
    assert more.fingerprint != rows.fingerprint


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("rl_endless", "it is endless: say how many tasks"),
        ("rl_nothing", "taskset 'rl_nothing' not found"),
        ("rl_letters?size=0", "size must be a whole number of at least 1"),
        ("rl_letters?length=3", "length"),
    ],
)
def test_a_mistake_in_the_data_is_one_line(uri, message):
    with pytest.raises(ConfigError, match=message) as caught:
        VerifiersDataset.open(f"verifiers:{uri}")
    assert "\n" not in str(caught.value)


class TestKit(EnvironmentKit):
    own_prompt = True
    leads_itself = True
    columns = {
        "prompt": "what",
        "task": {"prompt": "what", "answer": "a"},
        "data_source": "rl_letters",
    }

    def make(self, tokenizer):
        config = Kept.Config(taskset="rl_letters", template="plain", on_error="zero")
        return Kept(config, tokenizer)

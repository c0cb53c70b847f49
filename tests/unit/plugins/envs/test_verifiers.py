"""The adapter against a stand-in of verifiers' v1 interface that speaks to the endpoint."""

from __future__ import annotations

import importlib
import sys

import pytest

from rlframe.errors import RolloutError
from tests.unit.chat_templates import TEMPLATES, byte_tokenizer
from tests.unit.plugins.envs.playing import Policy, play, row

V1 = """
from dataclasses import dataclass

@dataclass
class EvalClientConfig:
    base_url: str
    api_key_var: str

@dataclass
class ModelContext:
    model: str
    client: EvalClientConfig
"""
LOADERS = """
import contextlib, json, os, urllib.request
from types import SimpleNamespace

def resolve_env_config(raw):
    assert raw["agent"] == {"harness": {"id": "null"}}
    return SimpleNamespace(id=raw["taskset"]["id"], size=raw["taskset"]["size"])

class Env:
    def __init__(self, config):
        self.taskset = [f"{config.id} {n}" for n in range(config.size)]
        self.live = False

    @contextlib.asynccontextmanager
    async def serving(self):
        self.live = True
        yield
        self.live = False

    async def run_episode(self, task, context):
        assert self.live
        messages, said = [{"role": "user", "content": task}], []
        for _ in range(2):
            key = os.environ[context.client.api_key_var]
            body = json.dumps({"model": context.model, "messages": messages}).encode()
            answer = json.load(urllib.request.urlopen(urllib.request.Request(
                context.client.base_url + "/chat/completions", body,
                {"Authorization": f"Bearer {key}"})))["choices"][0]["message"]
            said.append(answer["content"])
            messages += [answer, {"role": "user", "content": "again"}]
        traces = [SimpleNamespace(reward=float(s == "good")) for s in said]
        return SimpleNamespace(ok="bad" not in said, traces=traces, errors=["it was bad"])

def load_environment(config):
    return Env(config)
"""


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    for name, text in (("", ""), ("v1", V1), ("v1/utils", ""), ("v1/utils/loaders.py", LOADERS)):
        path = tmp_path / "verifiers" / name
        if not name.endswith(".py"):
            path.mkdir(parents=True, exist_ok=True)
            path = path / "__init__.py"
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("rlframe_plugins.envs.verifiers").VerifiersEnvironment
    for name in [n for n in sys.modules if n.split(".")[0] == "verifiers"]:
        del sys.modules[name]
    sys.modules.pop("rlframe_plugins.envs.verifiers_program", None)


def test_a_task_of_a_taskset_is_an_episode(adapter, tmp_path):
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES["chatml"])
    options = {"agent": {"harness": {"id": "null"}}, "taskset": {"size": 3}}
    env = adapter(adapter.Config(taskset="sums", options=options), tokenizer)
    policy = Policy(tokenizer, ["good", "so"])
    episode = play(env, policy, row(index=2))
    assert (episode.earned, episode.figures["turns"], len(episode.segments)) == (0.5, 2, 1)
    assert "sums 2" in tokenizer.decode(policy.asked[0].prompt_ids)
    with pytest.raises(RolloutError, match="the episode failed: ..it was bad"):
        play(env, Policy(tokenizer, ["bad"]), row(index=0))
    with pytest.raises(RolloutError, match="has no task 3"):
        play(env, Policy(tokenizer, ["good"]), row(index=3))
    with pytest.raises(RolloutError, match="needs the column 'index'"):
        play(env, Policy(tokenizer, ["good"]), row())
    env.close()


def test_a_taskset_has_to_be_named(adapter):
    with pytest.raises(ValueError, match="name an installed taskset"):
        adapter.Config()

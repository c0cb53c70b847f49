"""The rollout openai over real HTTP: text, chat, tokens; an evaluation with it, and no training."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlframe
from rlframe.cli.main import main
from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe_plugins.rollouts.openai.engine import OpenAIRollout
from tests.e2e.small import make_model, make_questions, options
from tests.unit.plugins.rollouts.fake_openai import FakeOpenAI

GREEDY = Sampling(temperature=0, max_new_tokens=8)
REWARD = "tests.e2e.small:letters"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("openai") / "model")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[FakeOpenAI]:
    found = FakeOpenAI(path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def with_tokens(path: Path) -> Iterator[FakeOpenAI]:
    found = FakeOpenAI(path, tokens=True)
    yield found
    found.close()


def ask(path: Path, server: FakeOpenAI, *requests: Request, **given: Any) -> list[Completion]:
    config = OpenAIRollout.Config(url=(server.url,), model="tiny", retries=0, **given)
    engine = OpenAIRollout(config, RolloutSpec(str(path), ModelConfig(path=str(path))))

    async def go() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(request) for request in requests])

    try:
        return asyncio.run(go())
    finally:
        engine.close()


def plain(server: FakeOpenAI, request: Request) -> Completion:
    """What the model behind the server says by itself."""
    return asyncio.run(server.engine.generate(request))


def test_tokens_are_exact_where_the_server_gives_them(path: Path, with_tokens: FakeOpenAI) -> None:
    requests = [Request(p, GREEDY) for p in ((7, 8, 9), (5,), (30, 4, 18, 22))]
    got = ask(path, with_tokens, *requests, api="ids")
    for request, one in zip(requests, got, strict=True):
        expected = plain(with_tokens, request)
        assert one.token_ids == expected.token_ids
        assert one.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert one.finish_reason == expected.finish_reason


def test_a_server_without_tokens_is_told_apart(path: Path, server: FakeOpenAI) -> None:
    with pytest.raises(RolloutError, match=r"answered 400.*return_token_ids"):
        ask(path, server, Request((7, 8, 9), GREEDY), api="ids")


@pytest.mark.parametrize("api", ["text", "chat"])
def test_text_goes_there_and_back(path: Path, server: FakeOpenAI, api: str) -> None:
    request = Request((7, 8, 9), GREEDY)
    (got,) = ask(path, server, request, api=api, system="be brief")
    expected = plain(server, request)
    text = server.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
    assert server.tokenizer.decode(got.token_ids) == text
    assert got.finish_reason == expected.finish_reason
    assert set(got.logprobs) == {0.0}
    method, where, body = server.asked[-1]
    assert body["stream"] is True
    if api == "chat":
        assert body["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": server.tokenizer.decode([7, 8, 9])},
        ]


def test_fields_of_its_own_are_sent_and_left_out(path: Path, server: FakeOpenAI) -> None:
    with pytest.raises(RolloutError, match="400.*effort"):
        ask(path, server, Request((7, 8), GREEDY), extra={"effort": "low"})
    ask(path, server, Request((7, 8), GREEDY), extra={"top_p": 0.5})
    assert server.asked[-1][2]["top_p"] == 0.5


def report(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    assert main(["eval", *map(str, words), "--json", "--reward", REWARD]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_evaluation_gives_what_the_model_itself_gets(
    path: Path, server: FakeOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = make_questions(tmp_path / "q.jsonl")
    short = ("data.template=plain", "rollout.max_new_tokens=6", "--data", questions)
    here = report(capsys, path, *short, "--rollout", "torch", "cluster.threads=1")
    asked = ("--rollout", "openai", f"rollout.url=[{server.url}]", "rollout.model=tiny")
    there = report(capsys, path, *short, *asked)
    assert there["figures"]["reward/mean"] == pytest.approx(here["figures"]["reward/mean"])
    assert there["figures"]["reward/mean"] > 0
    assert there["estimates"] == here["estimates"]


def test_a_run_does_not_train_with_it(path: Path, server: FakeOpenAI, tmp_path: Path) -> None:
    questions = make_questions(tmp_path / "q.jsonl")
    given = options(tmp_path, path, questions)
    given["data"] = {"train": f"jsonl:{questions}", "template": "plain"}
    given["rollout"] = {"name": "openai", "url": [server.url], "model": "tiny"}
    with pytest.raises(ConfigError, match="takes no weights.*use it with rlframe eval"):
        rlframe.fit(**given)
    assert not (tmp_path / "runs").exists()


def test_two_chat_templates_are_refused(path: Path, server: FakeOpenAI, tmp_path: Path) -> None:
    given = options(tmp_path, path, make_questions(tmp_path / "q.jsonl"))
    given["rollout"] = {"name": "openai", "url": [server.url], "model": "tiny"}
    with pytest.raises(ConfigError, match="data.template=auto would be a second one"):
        rlframe.fit(**given)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ValueError, match="model must name"):
        OpenAIRollout.Config(url=("http://x/v1",))

"""The rollout sglang over real HTTP: the kit, several servers, deaths, weights, what it refuses."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, EngineError, ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.fake_sglang import FakeSGLang
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS, RolloutKit
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.common import load_tokenizer
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from rlframe_plugins.rollouts.torch.engine import TorchRollout

LONG = Sampling(max_new_tokens=40, min_new_tokens=40)
_SERVERS: list[FakeSGLang] = []


def serve(path: Path, **options: Any) -> FakeSGLang:
    """A server with the model in ``path`` and the weights that lie there."""
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    engine = TorchRollout(TorchRollout.Config(), spec)
    engine.load(0, RolloutReference(path).tensors())
    tokenizer = load_tokenizer(spec)
    server = FakeSGLang(engine, tokenizer.decode, **options)
    _SERVERS.append(server)
    return server


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    while _SERVERS:
        server = _SERVERS.pop()
        server.close()
        server.engine.close()


class OverHttp(RolloutKit):
    """Each engine asks a server of its own."""

    rollout = "sglang"
    incremental = False

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        return super().make(
            target, path, url=(serve(path, incremental=self.incremental).url,), **options
        )


class TestSGLang(OverHttp):
    __test__ = True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return char_tokenizer(tiny_model(tmp_path / "model"))


def made(path: Path, *servers: FakeSGLang, **options: Any) -> SGLangRollout:
    given = {"check_s": 0.05, "retries": 0, "url": tuple(one.url for one in servers), **options}
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    return SGLangRollout(SGLangRollout.Config(**given), spec)


def run(engine: RolloutEngine, *requests: Request) -> list[Completion]:
    async def go() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(request) for request in requests])

    return asyncio.run(go())


def agrees(reference: RolloutReference, request: Request, got: Completion) -> None:
    expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
    assert list(got.logprobs) == pytest.approx(expected, abs=1e-4)


def test_streams_of_new_tokens_only_are_read_too(path: Path) -> None:
    reference = RolloutReference(path)
    engine = made(path, serve(path, incremental=True))
    engine.load(3, reference.tensors())
    requests = [Request(p, s) for p in PROMPTS for s in SAMPLINGS]
    for request, got in zip(requests, run(engine, *requests), strict=True):
        agrees(reference, request, got)
        assert set(got.versions) <= {3}
    engine.close()


def test_every_server_gets_the_weights_and_groups_stay_whole(path: Path) -> None:
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    for version in (1, 2):
        reference.change(seed=version)
        engine.load(version, reference.tensors())
        requests = [
            Request(PROMPTS[1], SAMPLINGS[0], group_id=10 * version + n // 3) for n in range(12)
        ]
        for request, got in zip(requests, run(engine, *requests), strict=True):
            agrees(reference, request, got)
            assert set(got.versions) == {version}
    assert [one.weight_version for one in servers] == ["2", "2"]
    asked = [sum(p == "/generate" for _, p, _ in one.asked) for one in servers]
    assert asked == [12, 12]
    folders = list(Path(servers[0].model_path).parent.glob("weights-*"))
    assert len(folders) == 2, "older weights are to be removed"
    engine.close()
    assert not Path(servers[0].model_path).exists()


def test_a_server_that_dies_loses_no_request(path: Path) -> None:
    """What it had goes on elsewhere from its tokens, under the same weights."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    engine.load(1, reference.tensors())
    requests = [Request(PROMPTS[1], LONG, group_id=n, request_id=str(n)) for n in range(8)]

    async def go() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        while sum(len(job.ids) for job in servers[0]._jobs.values()) < 12:
            await asyncio.sleep(0.001)
        servers[0].die()
        return await asyncio.gather(*tasks)

    for request, got in zip(requests, asyncio.run(go()), strict=True):
        assert len(got.token_ids) == 40
        agrees(reference, request, got)
    stats = engine.stats()
    assert stats["router/retries"] == 4
    assert stats["router/deaths"] == 1
    assert stats["requests"] == 8
    rest = [body for _, p, body in servers[1].asked if p == "/generate"]
    assert sum(len(body["input_ids"]) > 3 for body in rest) >= 1, "from the tokens that are known"
    engine.close()


def test_a_server_that_comes_back_gets_the_weights_before_requests(path: Path) -> None:
    """Under the same address, with the weights that it was started with."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers)
    reference.change(seed=1)
    engine.load(1, reference.tensors())
    servers[0].die()
    asked = [Request(PROMPTS[1], LONG, group_id=n) for n in range(4)]
    assert all(len(got.token_ids) == 40 for got in run(engine, *asked))
    servers[0].engine.load(9, RolloutReference(path).tensors())
    servers[0].weight_version = "default"
    servers[0].rise()

    async def until_back() -> None:
        while engine.stats()["router/replicas_up"] < 2:
            await asyncio.gather(engine.generate(Request(PROMPTS[0], SAMPLINGS[0])))

    asyncio.run(asyncio.wait_for(until_back(), 60))
    assert servers[0].weight_version == "1"
    again = [Request(PROMPTS[1], SAMPLINGS[0], group_id=100 + n) for n in range(6)]
    for request, got in zip(again, run(engine, *again), strict=True):
        agrees(reference, request, got)
    assert any(p == "/generate" for _, p, _ in servers[0].asked[-8:])
    engine.close()


def test_weights_that_a_server_cannot_read_are_an_error_and_it_goes_on(path: Path) -> None:
    server = serve(path)
    engine = made(path, server)
    engine.load(1, RolloutReference(path).tensors())
    save, engine._save = engine._save, lambda tensors: Path("/nowhere")  # type: ignore[method-assign]
    with pytest.raises(RolloutError, match="update_weights_from_disk answered 400"):
        engine.load(2, RolloutReference(path).tensors())
    engine._save = save  # type: ignore[method-assign]
    assert engine.version == 1
    assert set(run(engine, Request(PROMPTS[1], SAMPLINGS[0]))[0].versions) == {1}
    engine.close()


def test_memory_is_given_back_by_name(path: Path) -> None:
    server = serve(path)
    engine = made(path, server)
    engine.load(1, RolloutReference(path).tensors())
    engine.sleep(1)
    assert server.memory == {"kv_cache"}
    engine.wake()
    engine.sleep(2)
    assert server.memory == {"kv_cache", "weights"}
    engine.wake()
    assert server.memory == set()
    assert engine.version == -1
    engine.close()


def test_no_server_is_told_within_the_limit(path: Path) -> None:
    server = serve(path)
    engine = made(path, server, wait_s=0.5)
    engine.load(1, RolloutReference(path).tensors())
    server.die()
    with pytest.raises(EngineError, match=r"within rollout.wait_s=0.5 s: http://.*reached"):
        run(engine, Request(PROMPTS[1], SAMPLINGS[0]))
    engine.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"url": ()}, "url must hold"), ({"url": ("nowhere",)}, "url must be an address")],
)
def test_an_address_is_needed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGLangRollout.Config(**given)


def test_a_token_comes_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SGLangRollout.Config(url=("http://x:1",), token_env="SGLANG_TOKEN_OF_TEST")
    monkeypatch.delenv("SGLANG_TOKEN_OF_TEST", raising=False)
    with pytest.raises(ConfigError, match="export SGLANG_TOKEN_OF_TEST"):
        config.options()
    monkeypatch.setenv("SGLANG_TOKEN_OF_TEST", " hush ")
    assert config.options().token == "hush"


def test_a_model_that_is_not_there_is_told(path: Path) -> None:
    engine = made(path, serve(path))
    engine.load(1, RolloutReference(path).tensors())
    shutil.move(path / "config.json", path / "other.json")
    with pytest.raises(ModelError, match="no model config"):
        run(engine, Request(PROMPTS[1], SAMPLINGS[0]))
    engine.close()

"""Fake SGLang servers with a small real model, and the engine that asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.serving import load_tokenizer
from rlframe.testing.fake_sglang import FakeSGLang
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
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
def ended() -> Iterator[None]:
    yield
    while _SERVERS:
        server = _SERVERS.pop()
        server.close()
        server.engine.close()


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

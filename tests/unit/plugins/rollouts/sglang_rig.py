"""Fake SGLang servers with a small real model, and the engine that asks them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlframe.calling.loops import ThreadLoop
from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.serving import load_tokenizer
from rlframe.testing import fake_sglang_engine
from rlframe.testing.fake_sglang import FakeSGLang
from rlframe.testing.fake_sglang_engine import FakeEngine
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.hosted.host import Host
from rlframe_plugins.rollouts.hosted.link import Channel
from rlframe_plugins.rollouts.sglang.api import Api
from rlframe_plugins.rollouts.sglang.core import SGLangCore
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from rlframe_plugins.rollouts.sglang.inside import SGLangEngine
from rlframe_plugins.rollouts.torch.engine import TorchRollout

LONG = Sampling(max_new_tokens=40, min_new_tokens=40)
LASTING = 60
"""Tokens of requests of the kit that wait until something is done to them."""
_SERVERS: list[FakeSGLang] = []


def drawing(path: Path | str) -> tuple[RolloutEngine, Any]:
    """What draws for a fake: the model in ``path`` with the weights that lie there; and decodes."""
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    engine = TorchRollout(TorchRollout.Config(), spec)
    engine.load(0, RolloutReference(Path(path)).tensors())
    return engine, load_tokenizer(spec).decode


def serve(path: Path, **options: Any) -> FakeSGLang:
    """A server with that model."""
    server = FakeSGLang(*drawing(path), **options)
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


class Near(Channel):
    """A host in a thread of this process, over a socket as ever."""

    def __init__(self, lasting: int) -> None:
        mine, theirs = socket.socketpair()
        self.loop, self._lasting = ThreadLoop("rlframe-near"), lasting
        self.serving = self.loop.submit(self._serve(theirs))
        super().__init__("SGLang", mine)

    async def _serve(self, peer: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=peer)
        await Host("SGLang", self._core, writer).serve(reader)

    def _core(self, arguments: Mapping[str, Any]) -> SGLangCore:
        self.engine = FakeEngine(drawing, **arguments["engine"])
        self.engine.tokenizer_manager.scheduler.lasting = self._lasting
        api = Api(FakeEngine, fake_sglang_engine, fake_sglang_engine.serialize)
        self.core = SGLangCore(self.engine, api, 1, arguments["bucket_bytes"])
        return self.core

    def close(self) -> None:
        super().close()
        self.loop.close()


class Hosted(SGLangEngine):
    """The in-process engine over a fake of SGLang's."""

    lasting = LASTING

    def linked(self, threads: int, *, gpu: bool) -> Any:
        return Near(self.lasting)

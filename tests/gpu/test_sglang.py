"""The rollouts sglang and sglang-engine over the real SGLang, where there are it and a GPU."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the package sglang")

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from rlframe_plugins.rollouts.sglang.inside import SGLangEngine

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

_START_S = 600.0


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A model whose heads have a width that kernels have."""
    return char_tokenizer(tiny_model(tmp_path_factory.mktemp("sglang") / "model", hidden_size=128))


@pytest.fixture(scope="module")
def served(path):
    """The address of a server that has it."""
    folder = path.parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(path)]
    command += ["--port", str(port), "--dtype", "float32", "--enable-metrics"]
    command += ["--enable-memory-saver", "--mem-fraction-static", "0.3"]
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    else:
        pytest.fail(log.read_text()[-3000:])
    yield url
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def made(path: Path, url: str, **options: Any) -> SGLangRollout:
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    return SGLangRollout(SGLangRollout.Config(url=(url,), **options), spec)


def check_updates(engine: RolloutEngine, path: Path) -> None:
    """The embedding, which the head is tied to, changes too; asleep and awake in between."""
    reference = RolloutReference(path)
    samplings = (
        Sampling(temperature=0.3, max_new_tokens=12),
        Sampling(temperature=1.1, top_k=20, top_p=0.8, min_p=0.02, max_new_tokens=12),
    )
    for version in (1, 2, 3):
        reference.change(seed=version)
        engine.load(version, reference.tensors())
        for sampling in samplings:
            request = Request((5, 9, 4), sampling)
            got: Completion = asyncio.run(engine.generate(request))
            assert set(got.versions) == {version}
            found = reference.logprobs(request.prompt_ids, got, sampling).tolist()
            assert list(got.logprobs) == pytest.approx(found, abs=1e-3)
        engine.sleep(1 + version % 2)
        engine.wake()
    engine.load(4, reference.tensors())
    assert engine.gauges()["kv_total_tokens"] > 0


@pytest.mark.parametrize("weights", ["disk", "distributed"])
def test_log_probabilities_after_each_update(path: Path, served, weights: str) -> None:
    engine = made(path, served, weights=weights, address="127.0.0.1")
    check_updates(engine, path)
    engine.close()


@pytest.fixture(scope="module")
def inside(path) -> Iterator[SGLangEngine]:
    """The in-process engine."""
    config = SGLangEngine.Config(gpu_memory_utilization=0.2)
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)), device="cuda")
    engine = SGLangEngine(config, spec)
    yield engine
    engine.close()


def test_the_engine_in_a_process_of_its_own(path: Path, inside: SGLangEngine) -> None:
    check_updates(inside, path)


def test_a_load_while_requests_run(path: Path, inside: SGLangEngine) -> None:
    """They go on under the new weights; a pause that aborts ends them with what they have."""
    reference = RolloutReference(path)
    inside.load(5, reference.tensors())
    long = Request((7, 8, 9), Sampling(max_new_tokens=50, min_new_tokens=50))

    async def go() -> tuple[list[Completion], Completion]:
        works = [asyncio.create_task(inside.generate(long)) for _ in range(8)]
        while inside.stats()["busy_s"] == 0:
            await asyncio.sleep(0)
        inside.load(6, reference.tensors())
        done = await asyncio.gather(*works)
        last = asyncio.create_task(inside.generate(long))
        await asyncio.sleep(0)
        inside.pause("abort")
        ended = await last
        inside.resume()
        return done, ended

    done, ended = asyncio.run(go())
    for got in done:
        assert list(got.versions) == sorted(got.versions)
        assert set(got.versions) <= {5, 6}
        assert len(got.token_ids) == 50
    assert len(ended.token_ids) <= 50


def test_a_killed_scheduler_is_an_error(path: Path) -> None:
    """And the next weights start the engine again."""
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)), device="cuda")
    engine = SGLangEngine(SGLangEngine.Config(gpu_memory_utilization=0.2), spec)
    tensors = RolloutReference(path).tensors()
    engine.load(1, tensors)
    assert engine._link is not None
    os.killpg(engine._link.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(RolloutError, match="SGLang"):
        asyncio.run(engine.generate(Request((5,), Sampling(max_new_tokens=4))))
    engine.load(2, tensors)
    assert asyncio.run(engine.generate(Request((5,), Sampling(max_new_tokens=4)))).token_ids
    engine.close()

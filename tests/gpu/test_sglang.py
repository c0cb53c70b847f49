"""The rollout sglang over a real server, where there are a GPU and the package sglang."""

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
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the package sglang")

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

_START_S = 600.0


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and the address of a server that has it."""
    folder = tmp_path_factory.mktemp("sglang")
    path = char_tokenizer(tiny_model(folder / "model", hidden_size=128))
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
    yield path, url
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def made(path: Path, url: str, **options: Any) -> SGLangRollout:
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    return SGLangRollout(SGLangRollout.Config(url=(url,), **options), spec)


@pytest.mark.parametrize("weights", ["disk", "distributed"])
def test_log_probabilities_after_each_update(served, weights: str) -> None:
    """The embedding, which the head is tied to, changes too; asleep and awake in between."""
    path, url = served
    reference = RolloutReference(path)
    engine = made(path, url, weights=weights, address="127.0.0.1")
    request = Request((5, 9, 4), Sampling(temperature=0.3, max_new_tokens=12))
    for version in (1, 2, 3):
        reference.change(seed=version)
        engine.load(version, reference.tensors())
        got: Completion = asyncio.run(engine.generate(request))
        assert set(got.versions) == {version}
        found = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
        assert list(got.logprobs) == pytest.approx(found, abs=1e-3)
        engine.sleep(1)
        engine.wake()
    assert engine.gauges()["kv_total_tokens"] > 0
    engine.close()

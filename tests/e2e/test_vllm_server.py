"""A vLLM server that a run trains, started as a user would; ``make test-vllm`` runs it."""

from __future__ import annotations

import json
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

pytest.importorskip("vllm", reason="rollout 'vllm' needs the package vllm: make test-vllm")

import rlframe
from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.testing.rollout_kit import RolloutKit
from rlframe_plugins.rollouts.vllm.processes import host_environment
from tests.e2e.small import make_questions, options
from tests.e2e.test_vllm_runs import STEPS, check_logprobs, none_left
from tests.unit.plugins.rollouts.vllm_rig import BLOCK, POSITIONS, model_for

pytestmark = [pytest.mark.slow, pytest.mark.dist, pytest.mark.timeout(900)]

TOKEN = "open sesame"
_START_S = 600


class Running:
    """``serve`` on a model, in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = model_for(folder / "model", "qwen2")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "rlframe_plugins.rollouts.vllm.serve", str(self.path)]
        command += ["--port", str(port), "--token-env", "RLFRAME_TEST_TOKEN"]
        command += ["--enforce-eager", "--dtype", "float32", "--block-size", str(BLOCK)]
        command += ["--kv-cache-memory-bytes", str(2**28), "--served-model-name", "tiny"]
        self.log = folder / "log"
        environment = host_environment(1, folder, gpu=False) | {"RLFRAME_TEST_TOKEN": TOKEN}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
            else:
                return
        self.close()
        pytest.fail(self.log.read_text()[-3000:])

    def close(self) -> None:
        """End it and all that it started."""
        self.process.kill()
        self.process.wait()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    made = Running(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("RLFRAME_TEST_TOKEN", TOKEN)


class TestServer(RolloutKit):
    """The kit over HTTP."""

    rollout = "vllm-server"
    positions, lasting = POSITIONS, POSITIONS // 2

    @pytest.fixture
    def path(self, running) -> Path:
        self.made = running
        return running.path

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        given = {"url": (self.made.url,), "token_env": "RLFRAME_TEST_TOKEN"}
        config = target.Config(**given, **options)
        return target(config, RolloutSpec(str(path), ModelConfig(path=str(path))))


def test_a_run_trains_the_servers_weights(running, tmp_path):
    """Exact log-probabilities of each version, the embedding's changes among them."""
    inputs = running.path, make_questions(tmp_path / "questions.jsonl")
    given = options(tmp_path, *inputs, steps=STEPS, optim={"lr": 0.02})
    given["rollout"] = {
        "name": "vllm-server",
        "url": [running.url],
        "token_env": "RLFRAME_TEST_TOKEN",
        "temperature": 0.3,
        "max_new_tokens": 6,
    }
    given["algo"]["samples_per_prompt"] = 4
    given["run"] |= {"save_every": 1, "keep": STEPS, "dump_rollouts": True}
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    check_logprobs(done.run_dir, inputs, 0.3, tmp_path)
    rows = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").open()]
    steps = [row for row in rows if "rollout/tokens_per_s" in row]
    assert len(steps) == STEPS
    for row in steps:
        assert row["rollout/kv_total_tokens"] > row["rollout/kv_used_tokens"] >= 0
        assert row["rollout/running"] == row["rollout/waiting"] == 0
        assert row["rollout/prefill_tokens"] > 0
        assert row["rollout/requests"] == steps[0]["rollout/requests"]


@pytest.mark.parametrize("path", ["/rlframe/stats", "/v1/completions"])
def test_nobody_is_answered_without_the_token(running, path):
    request = urllib.request.Request(f"{running.url}{path}", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 401


def test_it_speaks_openais_protocol_too(running):
    """The weights of the run, by token ids."""
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "return_token_ids": True}
    request = urllib.request.Request(
        f"{running.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found = json.load(reply)
    assert found["usage"]["completion_tokens"] >= 1


def test_vllms_processes_end_with_a_killed_server(running):
    """None of them lives on."""
    running.process.kill()
    running.process.wait()
    none_left()

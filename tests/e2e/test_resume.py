"""A resumed run equals the unbroken one bit for bit; a kill loses at most what was unsaved."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.snapshots.snapshot import SnapshotStore
from tests.e2e.small import steady

STEPS = 5
SMALL = {
    "steps": STEPS,
    "rollout": {"name": "torch", "batch_invariant": True, "max_new_tokens": 6},
    "algo": {"name": "grpo", "samples_per_prompt": 2, "minibatch_prompts": 2, "kl_coef": 0.01},
    "optim": {"lr": 1e-3, "schedule": "cosine", "warmup_steps": 2},
    "data": {
        "train": "builtin:arithmetic?split=train&size=9",
        "validate": None,
        "prompts_per_step": 4,
    },
    "logger": ["jsonl"],
    "cluster": {"name": "inline", "threads": 1},
}


def settings(folder: Path, name: str, **run) -> dict:
    return {**SMALL, "run": {"dir": str(folder), "name": name, "save_every": 1, "keep": 99, **run}}


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    newest = SnapshotStore(run_dir).latest()
    assert newest is not None
    assert newest.step == STEPS
    found = sorted((newest.path / "policy").glob("*.safetensors"))
    assert found
    return {f"{file.name}/{n}": t for file in found for n, t in load_file(file).items()}


def figures(run_dir: Path) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [steady(json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return rlframe.fit(**settings(folder, "whole")).run_dir


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resume_at_every_step_equals_the_unbroken_run(unbroken, tmp_path, step):
    """9 prompts and 4 a step: step 3 crosses the epoch boundary."""
    copy = tmp_path / "resumed"
    shutil.copytree(unbroken, copy)
    snapshot = copy / "snapshots" / f"step-{step:06d}"
    resumed = rlframe.fit(resume=snapshot).run_dir
    assert resumed == copy
    expected, found = weights(unbroken), weights(resumed)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    assert figures(resumed)[-(STEPS - step) :] == figures(unbroken)[-(STEPS - step) :]


SCRIPT = """
import json, sys, rlframe
options = json.loads(sys.argv[1])
print("ready", flush=True)
rlframe.fit(**options, resume="auto")
"""


def start(options: dict) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_kill_9_loses_at_most_the_unsaved_steps(unbroken, tmp_path, beside):
    """Killed at random points after a snapshot appeared, the run still ends as the unbroken one."""
    options = settings(tmp_path, "killed", save_in_background=beside)
    snapshots = tmp_path / "killed" / "snapshots"
    rng = random.Random(0)
    kills = 0
    for _ in range(3):
        before = len(list(snapshots.glob("step-*"))) if snapshots.is_dir() else 0
        process = start(options)
        while process.poll() is None:
            now = len(list(snapshots.glob("step-*"))) if snapshots.is_dir() else 0
            if now > before and rng.random() < 0.5:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        process.wait(timeout=120)
        kills += process.returncode == -signal.SIGKILL
    assert kills, "no run was killed: the test proved nothing"
    last = start(options)
    output, _ = last.communicate(timeout=200)
    assert last.returncode == 0, output
    expected, found = weights(unbroken), weights(tmp_path / "killed")
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    assert [f["step"] for f in figures(tmp_path / "killed")] == [1, 2, 3, 4, 5]


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    options = settings(tmp_path, "stopped", save_every=0) | {"steps": 400}
    process = start(options)
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "stopped by SIGTERM" in output
    assert "--resume" in output
    saved = list((tmp_path / "stopped" / "snapshots").glob("step-*"))
    assert len(saved) == 1

"""A run with a critic, a KL in the reward and a warm-up goes on as if it had never stopped."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.snapshots.snapshot import SnapshotStore
from tests.e2e.small import steady

STEPS = 4
SMALL = {
    "steps": STEPS,
    "rollout": {"name": "torch", "batch_invariant": True, "max_new_tokens": 6},
    "algo": {
        "name": "ppo",
        "samples_per_prompt": 2,
        "minibatch_prompts": 2,
        "critic_warmup": 2,
        "warmup_returns": "monte-carlo",
        "kl_reward_coef": 0.05,
        "kl_target": 0.01,
        "kl_horizon": 20.0,
    },
    "roles": {"critic": {"optim": {"lr": 2e-3}}},
    "optim": {"lr": 1e-3, "schedule": "cosine", "warmup_steps": 1},
    "data": {
        "train": "builtin:arithmetic?split=train&size=9",
        "validate": None,
        "prompts_per_step": 4,
    },
    "logger": ["jsonl"],
    "cluster": {"name": "inline", "threads": 1},
}


def tensors(run_dir, role):
    newest = SnapshotStore(run_dir).latest()
    assert newest is not None
    assert newest.step == STEPS
    files = sorted((newest.path / role).glob("*.safetensors"))
    assert files
    return {f"{file.name}/{n}": t for file in files for n, t in load_file(file).items()}


def figures(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [steady(json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    run = {"dir": str(folder), "name": "whole", "save_every": 1, "keep": 99}
    return rlframe.fit(**{**SMALL, "run": run}).run_dir


def test_the_run_is_what_it_says(unbroken):
    rows = figures(unbroken)
    assert ["actor/pg_loss" in row for row in rows] == [False, False, True, True]
    assert all(row["critic/grad_norm"] > 0 for row in rows)
    names = {"critic/vf_loss", "critic/vf_explained_var", "critic/vf_clipfrac", "actor/ppo_kl"}
    assert names <= rows[-1].keys()
    assert rows[3]["actor/kl_reward_coef"] != rows[2]["actor/kl_reward_coef"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_resume_equals_the_unbroken_run(unbroken, tmp_path, step):
    """Step 1 is in the middle of the warm-up, step 2 at its end."""
    copy = tmp_path / "resumed"
    shutil.copytree(unbroken, copy)
    resumed = rlframe.fit(resume=copy / "snapshots" / f"step-{step:06d}").run_dir
    for role in ("policy", "critic"):
        expected, found = tensors(unbroken, role), tensors(resumed, role)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, found[name]), (role, name)
    assert figures(resumed)[-(STEPS - step) :] == figures(unbroken)[-(STEPS - step) :]

"""Runs of strategy deepspeed on Ray: as one process on replayed rollouts, learning, resuming."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.snapshot_export import export
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("deepspeed", reason="strategy 'deepspeed' needs deepspeed: make test-deepspeed")
pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

SHARDED = {"name": "deepspeed", "zero": 3, "persist_below": 0}
STRATEGIES = {
    "zero1": {"name": "deepspeed", "zero": 1},
    "zero2": {"name": "deepspeed", "zero": 2, "offload_optimizer": True},
    "zero3": SHARDED,
}
SGD = {"name": "sgd", "lr": 0.5, "max_grad_norm": 0.5}
PPO = {"name": "ppo", "samples_per_prompt": 2}


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """One update of actor and critic in this process, its rollouts on record."""
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    given = options(folder, model, questions, algo=PPO, steps=1, optim=SGD)
    given["run"] = {"dir": str(folder), "name": "inline", "dump_rollouts": True}
    return folder, rlframe.fit(**given).run_dir


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "ranks"), [("zero1", 2), ("zero2", 2), ("zero3", 2), ("zero3", 4)]
)
def test_an_update_equals_that_of_one_process(name, ranks, inline, tmp_path):
    """On replayed rollouts, from equal weights: loss, norms, every metric, every weight."""
    folder, run = inline
    more = {"algo": PPO, "steps": 1, "optim": SGD, "strategy": STRATEGIES[name]}
    given = options(tmp_path, folder / "m", folder / "q.jsonl", **more)
    given["rollout"] = {"name": "replay", "run": str(run), "max_new_tokens": 4}
    given |= {"cluster": {"name": "ray"}, "pools": {"train": {"devices": ranks}}}
    spread = rlframe.fit(**given)
    assert spread.summary["status"] == "finished"
    (one,), (many,) = lines(run), lines(spread.run_dir)
    same = [k for k in one if not k.startswith(("timing_s/", "perf/", "rollout/", "sync/"))]
    assert {"actor/loss", "actor/grad_norm", "critic/vf_loss"} <= set(same)
    for key in same:
        if isinstance(one[key], int | float):
            assert many[key] == pytest.approx(one[key], rel=1e-4, abs=1e-5), key
    first, second = exported(run, tmp_path / "a"), exported(spread.run_dir, tmp_path / "b")
    assert set(first) == set(second)
    for key, tensor in first.items():
        assert torch.allclose(tensor, second[key], atol=1e-5, rtol=0), key


def exported(run, folder):
    export(run, folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_learns_and_resumes(ranks, tmp_path):
    """With a frozen reference under ZeRO-3 too; the second half continues from a snapshot."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    data = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}", "prompts_per_step": 8}
    given = options(tmp_path, model, questions, strategy=SHARDED, steps=3, optim={"lr": 0.03})
    del given["data.prompts_per_step"]
    given |= {"data": data, "cluster": {"name": "ray"}, "pools": {"train": {"devices": ranks}}}
    given |= {"seed": 1, "algo": {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.001}}
    given["run"] = {"dir": str(tmp_path), "name": "run", "validate_every": 3, "save_every": 3}
    first = rlframe.fit(**given)
    second = rlframe.fit(**{**given, "steps": 6, "resume": str(first.run_dir)})
    assert second.summary["status"] == "finished"
    found = lines(second.run_dir)
    rewards = [one["val/reward/mean"] for one in found if "val/reward/mean" in one]
    assert rewards[-1] > rewards[0] + 0.3, rewards
    assert any("timing_s/ref" in one or "timing_s/reference" in one for one in found)

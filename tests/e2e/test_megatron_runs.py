"""Runs of strategy megatron on Ray: as one process on replayed rollouts, learning, resuming."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.snapshot_export import export
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from tests.e2e.small import make_questions, options

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")
pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

GRID = {"name": "megatron", "tp": 2, "pp": 2}
FORMS = {
    "tp-pp": (GRID, 4),
    "sequence-dp": ({"name": "megatron", "tp": 2, "sequence_parallel": True}, 4),
}
SGD = {"name": "sgd", "lr": 0.5, "max_grad_norm": 0.5}
PPO = {"name": "ppo", "samples_per_prompt": 2}


def make_model(folder):
    """Heads that two tensor-parallel ranks can share; a vocabulary that they cannot."""
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return char_tokenizer(tiny_model(folder, **sizes))


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def exported(run, folder):
    export(run, folder)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """One update of actor and critic in this process, its rollouts on record."""
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    given = options(folder, model, questions, algo=PPO, steps=1, optim=SGD)
    given["run"] = {"dir": str(folder), "name": "inline", "dump_rollouts": True}
    return folder, rlframe.fit(**given).run_dir


@pytest.mark.parametrize("form", FORMS)
def test_an_update_equals_that_of_one_process(form, inline, tmp_path):
    """On replayed rollouts, from equal weights: loss, norms, every metric, every weight."""
    folder, run = inline
    strategy, ranks = FORMS[form]
    more = {"algo": PPO, "steps": 1, "optim": SGD, "strategy": strategy}
    given = options(tmp_path, folder / "m", folder / "q.jsonl", **more)
    given["rollout"] = {"name": "replay", "run": str(run), "max_new_tokens": 4}
    given |= {"cluster": {"name": "ray"}, "pools": {"train": {"devices": ranks}}}
    spread = rlframe.fit(**given)
    assert spread.summary["status"] == "finished"
    (one,), (many,) = lines(run), lines(spread.run_dir)
    same = [k for k in one if not k.startswith(("timing_s/", "perf/", "rollout/", "sync/"))]
    numbers = [k for k in same if isinstance(one[k], int | float)]
    assert any("grad_norm" in key for key in numbers)
    assert any("critic" in key for key in numbers)
    for key in numbers:
        assert many[key] == pytest.approx(one[key], rel=1e-4, abs=1e-5), key
    first, second = exported(run, tmp_path / "a"), exported(spread.run_dir, tmp_path / "b")
    assert set(first) == set(second)
    for key, tensor in first.items():
        assert torch.allclose(tensor, second[key], atol=1e-5, rtol=0), key


def test_it_learns_and_resumes(tmp_path):
    """Training 2-2-1 (p-t-d), generation 1-2-2-1, checked; the second half from a snapshot."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    data = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}", "prompts_per_step": 8}
    given = options(tmp_path, model, questions, strategy=GRID, steps=3, optim={"lr": 0.03})
    del given["data.prompts_per_step"]
    given |= {"data": data, "cluster": {"name": "ray"}, "pools": {"train": {"devices": 4}}}
    given |= {"seed": 1, "algo": {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.001}}
    given["run"] = {"dir": str(tmp_path), "name": "run", "validate_every": 3, "save_every": 3}
    given["rollout"] = {"name": "torch", "max_new_tokens": 4, "tensor_parallel": 2}
    given["checkpoint"] = {"name": "hybrid", "verify": 1}
    first = rlframe.fit(**given)
    second = rlframe.fit(**{**given, "steps": 6, "resume": str(first.run_dir)})
    assert second.summary["status"] == "finished"
    found = lines(second.run_dir)
    rewards = [one["val/reward/mean"] for one in found if "val/reward/mean" in one]
    assert rewards[-1] > rewards[0] + 0.3, rewards

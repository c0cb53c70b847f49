"""fsdp cut and sharded over four workers: the update of one process, and a run that learns."""

from __future__ import annotations

import json

import pytest
import torch

import rlframe
from tests.e2e.small import make_model, make_questions, options
from tests.e2e.test_ray_runs import exported

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]

FOUR = {"train": {"devices": 4}}
SGD = {"name": "sgd", "lr": 0.5}
GRPO = {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.1}
TIMES = ("timing_s/", "perf/", "weights/")


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """Two steps in this process, their rollouts on record; the folder, and the run's."""
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    given = options(folder, model, questions, algo=GRPO, optim=SGD)
    given["run"] = {"dir": str(folder), "name": "inline", "dump_rollouts": True}
    return folder, rlframe.fit(**given).run_dir


def metrics(run):
    """Figures of each step that do not say how long something took."""
    lines = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(TIMES)} for line in lines]


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"replicas": 2}], ids=str)
def test_steps_on_recorded_rollouts_equal_those_of_one_process(sizes, inline, tmp_path):
    folder, run = inline
    strategy = {"name": "fsdp", **sizes}
    more = {"algo": GRPO, "optim": SGD, "strategy": strategy, "pools": FOUR}
    given = options(tmp_path, folder / "m", folder / "q.jsonl", **more)
    given["rollout"] = {"name": "replay", "run": str(run), "max_new_tokens": 4}
    given["cluster"] = {"name": "ray"}
    spread = rlframe.fit(**given)
    wanted, got = metrics(run), metrics(spread.run_dir)
    assert len(got) == len(wanted) == 2
    for mine, theirs in zip(got, wanted, strict=True):
        named = [name for name in theirs if name.startswith("actor/")]
        assert {"actor/grad_norm", "actor/loss", "actor/entropy"} <= set(named), named
        for name in named:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    one, many = exported(run, tmp_path / "a"), exported(spread.run_dir, tmp_path / "b")
    assert set(one) == set(many)
    for key in one:
        assert torch.allclose(one[key], many[key], atol=1e-5, rtol=0), key


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"replicas": 2}], ids=str)
def test_a_run_on_four_workers_learns(sizes, tmp_path):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    strategy = {"name": "fsdp", **sizes}
    given = options(
        tmp_path, model, questions, strategy=strategy, pools=FOUR, steps=6, optim={"lr": 0.03}
    )
    del given["data.prompts_per_step"]
    data = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}", "prompts_per_step": 8}
    given |= {"data": data, "cluster": {"name": "ray"}, "seed": 1}
    given["algo"] = {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.001}
    given["run"] = {"dir": str(tmp_path), "name": "run", "validate_every": 6, "save_every": 0}
    done = rlframe.fit(**given)
    scores = [m["val/reward/mean"] for m in metrics(done.run_dir) if "val/reward/mean" in m]
    assert done.summary["status"] == "finished"
    assert scores[-1] > scores[0] + 0.3, scores

"""Overlapping schedulers on Ray: rollout and trainer in pools of their own, at the same time."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

ONE = {"devices": 1}


@pytest.mark.parametrize(
    ("scheduler", "oldest"),
    [
        ({"name": "one-step-off"}, 1),
        ({"name": "async", "staleness": 2, "on_update": "abort"}, 2),
    ],
)
def test_pools_of_their_own_work_at_once_and_learn(scheduler, oldest, tmp_path):
    questions = make_questions(tmp_path / "questions.jsonl")
    data = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}", "prompts_per_step": 8}
    given = options(
        tmp_path,
        make_model(tmp_path / "model"),
        questions,
        strategy="fsdp",
        steps=8,
        optim={"lr": 0.03},
        scheduler=scheduler,
        cluster={"name": "ray"},
        pools={"train": ONE, "samples": ONE},
        checkpoint="transport",
        seed=1,
    )
    del given["data.prompts_per_step"]
    given |= {"data": data, "rollout": {"name": "torch", "max_new_tokens": 4, "pool": "samples"}}
    given["algo"] = {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.001}
    given["run"] = {"dir": str(tmp_path), "name": "run", "save_every": 0}
    done = rlframe.fit(**given)
    lines = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    ages = [one["training/staleness/max"] for one in lines if "training/staleness/max" in one]
    assert (len(ages), ages[0]) == (8, 0.0)
    assert 1 <= max(ages) <= oldest
    assert done.summary["val_after"] > done.summary["val_before"] + 0.2

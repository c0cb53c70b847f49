"""ppo and grpo learn in every placement, which is configuration: no line of a method differs."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import make_model, make_questions, options
from tests.e2e.test_reward_model import reward_model

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

ONE = {"devices": 1}
STEPS = 6


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


def together(algo, folder):
    """All roles on the ranks of one pool."""
    return {"pools": {"train": {"devices": 2}}, "roles": {"critic": {}}}


def judges_apart(algo, folder):
    """Actor, reference and rollout in one pool; the critic and a reward model in another."""
    scorer = {"pool": "second", "model": {"path": str(reward_model(folder / "scorer"))}}
    roles = {"critic": {"pool": "second"}, "reward": scorer}
    return {"pools": {"train": ONE, "second": ONE}, "roles": roles}


def each_apart(algo, folder):
    """Every role in a pool of its own, the rollout too: its weights cross pools."""
    names = ("reference", "critic") if algo == "ppo" else ("reference",)
    return {
        "pools": {name: ONE for name in ("train", "samples", *names)},
        "roles": {name: {"pool": name} for name in names},
        "rollout": {"name": "torch", "max_new_tokens": 4, "pool": "samples"},
        "checkpoint": "transport",
    }


@pytest.mark.parametrize("place", [together, judges_apart, each_apart])
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_method_learns_in_every_placement(algo, place, inputs, tmp_path):
    model, questions = inputs
    placed = place(algo, tmp_path)
    learning = {"optim": {"lr": 0.03}}
    if algo == "ppo":
        placed["roles"]["critic"] |= learning
    else:
        placed["roles"].pop("critic", None)
    data = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}", "prompts_per_step": 8}
    given = options(tmp_path, model, questions, strategy="fsdp", steps=STEPS, **learning, **placed)
    del given["data.prompts_per_step"]
    if "reward" in placed["roles"]:
        del given["reward"]
    given |= {"data": data, "cluster": {"name": "ray"}, "seed": 1}
    given["algo"] = {"name": algo, "samples_per_prompt": 8, "kl_coef": 0.001}
    given["run"] = {"dir": str(tmp_path), "name": "run", "validate_every": STEPS, "save_every": 0}
    done = rlframe.fit(**given)
    lines = [json.loads(x) for x in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = (one["val/reward/mean"] for one in lines if "val/reward/mean" in one)
    assert done.summary["status"] == "finished"
    assert last > first + 0.3, (first, last)
    assert any("timing_s/ref" in one or "timing_s/reference" in one for one in lines)

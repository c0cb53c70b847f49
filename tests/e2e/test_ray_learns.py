"""ppo and grpo learn in every placement, which is configuration: no line of a method differs."""

from __future__ import annotations

import pytest

import rlframe
from tests.e2e.replays import logged
from tests.e2e.small import learning, make_model, make_questions
from tests.e2e.test_reward_model import reward_model

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

ONE = {"devices": 1}


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
    if algo == "ppo":
        placed["roles"]["critic"] |= {"optim": {"lr": 0.03}}
    else:
        placed["roles"].pop("critic", None)
    given = learning(tmp_path, model, questions, **placed)
    given["algo"]["name"] = algo
    if "reward" in placed["roles"]:
        del given["reward"]
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    assert done.summary["val_after"] > done.summary["val_before"] + 0.3, done.summary
    assert any("timing_s/ref" in one or "timing_s/reference" in one for one in logged(done.run_dir))

"""Overlapping schedulers on Ray: pools of their own at the same time, shared devices in turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import rlframe
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.engine import CausalLMEngine
from tests.e2e.replays import logged
from tests.e2e.small import learning, make_model, make_questions

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

HERE = "tests.e2e.test_schedulers_ray"
ONE = {"devices": 1}


@pytest.mark.parametrize(
    ("scheduler", "oldest"),
    [
        ({"name": "one-step-off"}, 1),
        ({"name": "async", "staleness": 2, "on_update": "abort"}, 2),
    ],
)
def test_pools_of_their_own_work_at_once_and_learn(scheduler, oldest, tmp_path):
    placed = {"pools": {"train": ONE, "samples": ONE}, "checkpoint": "transport"}
    found = learned(tmp_path, {"pool": "samples"}, scheduler=scheduler, **placed)
    check_ages(found, oldest)


class Sleeper(TorchRollout):
    """Counts how often its cache was given back, and how often it came again."""

    naps = wakes = 0

    def sleep(self, level: int = 1) -> None:
        super().sleep(level)
        self.naps += 1

    def wake(self) -> None:
        super().wake()
        self.wakes += 1


class Beside(CausalLMEngine):
    """Notes with each update what the rollout in the same process does meanwhile."""

    def update(self, batch, plan):
        rollout = self.peers["rollout"]
        before = rollout.stats()["busy_s"]
        found = super().update(batch, plan)
        noted = {"decoded_s": rollout.stats()["busy_s"] - before}
        noted |= {"naps": float(rollout.naps), "wakes": float(rollout.wakes)}
        return replace(found, metrics=found.metrics | noted)


def test_on_shared_devices_they_take_turns_and_learn(tmp_path):
    """The rollout sleeps in every update, wakes for the next weights, and runs ahead of them."""
    scheduler = {"name": "async", "staleness": 2, "on_update": "drain"}
    checkpoint = {"name": "hybrid", "after_generation": "cache"}
    placed = {"pools": {"train": ONE}, "checkpoint": checkpoint}
    rollout = {"name": f"{HERE}:Sleeper"}
    found = learned(tmp_path, rollout, f"{HERE}:Beside", scheduler=scheduler, **placed)
    check_ages(found, 2)
    steps = [one for one in found if "actor/naps" in one]
    assert [one["actor/decoded_s"] for one in steps] == [0.0] * 8
    naps = [one["actor/naps"] for one in steps]
    assert [after - before for before, after in pairwise(naps)] == [1.0] * 7
    assert all(one["actor/naps"] == one["actor/wakes"] + 1 for one in steps)


def learned(folder, rollout, engine="", **more) -> list[dict]:
    """What eight steps logged that must have learned the questions."""
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    given = learning(folder, model, questions, steps=8, **more)
    given["rollout"] |= rollout
    if engine:
        given["model"] = {"path": str(model), "engine": engine}
    done = rlframe.fit(**given)
    assert done.summary["val_after"] > done.summary["val_before"] + 0.2
    return logged(done.run_dir)


def check_ages(found, oldest) -> None:
    """Every step in the bound, and the first from weights that nothing had changed."""
    ages = [one["training/staleness/max"] for one in found if "training/staleness/max" in one]
    assert (len(ages), ages[0]) == (8, 0.0)
    assert 1 <= max(ages) <= oldest

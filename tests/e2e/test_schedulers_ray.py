"""Overlapping schedulers on Ray: rollout and trainer in pools of their own, at the same time."""

from __future__ import annotations

import pytest

import rlframe
from tests.e2e.replays import logged
from tests.e2e.small import learning, make_model, make_questions

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
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    placed = {"pools": {"train": ONE, "samples": ONE}, "checkpoint": "transport"}
    given = learning(tmp_path, model, questions, steps=8, scheduler=scheduler, **placed)
    given["rollout"] |= {"pool": "samples"}
    done = rlframe.fit(**given)
    found = logged(done.run_dir)
    ages = [one["training/staleness/max"] for one in found if "training/staleness/max" in one]
    assert (len(ages), ages[0]) == (8, 0.0)
    assert 1 <= max(ages) <= oldest
    assert done.summary["val_after"] > done.summary["val_before"] + 0.2

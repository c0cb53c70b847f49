"""fsdp cut and sharded over four workers: the update of one process, and a run that learns."""

from __future__ import annotations

import pytest

import rlframe
from tests.e2e.replays import SGD, check_figures, check_weights, logged, record, replay
from tests.e2e.small import learning, make_model, make_questions

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]

FOUR = {"train": {"devices": 4}}
GRPO = {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.1}
STEPS = {"algo": GRPO, "steps": 2, "optim": {**SGD, "max_grad_norm": 1.0}}


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    return record(folder, model, questions, **STEPS), model, questions


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"replicas": 2}], ids=str)
def test_steps_on_recorded_rollouts_equal_those_of_one_process(sizes, inline, tmp_path):
    run = inline[0]
    spread = replay(tmp_path, *inline, **STEPS, strategy={"name": "fsdp", **sizes}, pools=FOUR)
    assert "actor/entropy" in logged(run)[1]
    check_figures(run, spread)
    check_weights(run, spread, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"replicas": 2}], ids=str)
def test_a_run_on_four_workers_learns(sizes, tmp_path):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    placed = {"strategy": {"name": "fsdp", **sizes}, "pools": FOUR}
    done = rlframe.fit(**learning(tmp_path, model, questions, **placed))
    assert done.summary["status"] == "finished"
    assert done.summary["val_after"] > done.summary["val_before"] + 0.3, done.summary

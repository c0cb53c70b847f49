"""Runs of strategy deepspeed on Ray: as one process on replayed rollouts, learning, resuming."""

from __future__ import annotations

import pytest

import rlframe
from tests.e2e.replays import check_figures, check_weights, logged, record, replay
from tests.e2e.small import learning, make_model, make_questions, validated

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


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    return record(folder, model, questions), model, questions


@pytest.mark.parametrize(
    ("name", "ranks"), [("zero1", 2), ("zero2", 2), ("zero3", 2), ("zero3", 4)]
)
def test_an_update_equals_that_of_one_process(name, ranks, inline, tmp_path):
    """On replayed rollouts, from equal weights: loss, norms, every metric, every weight."""
    run = inline[0]
    placed = {"strategy": STRATEGIES[name], "pools": {"train": {"devices": ranks}}}
    spread = replay(tmp_path, *inline, **placed)
    assert "critic/vf_loss" in logged(run)[0]
    check_figures(run, spread)
    check_weights(run, spread, tmp_path)


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_learns_and_resumes(ranks, tmp_path):
    """With a frozen reference under ZeRO-3 too; the second half continues from a snapshot."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    placed = {"strategy": SHARDED, "pools": {"train": {"devices": ranks}}}
    given = learning(tmp_path, model, questions, **placed)
    given["run"] |= {"validate_every": 3, "save_every": 3}
    first = rlframe.fit(**{**given, "steps": 3})
    second = rlframe.fit(**{**given, "resume": str(first.run_dir)})
    assert second.summary["status"] == "finished"
    rewards = validated(second.run_dir)
    assert rewards[-1] > rewards[0] + 0.3, rewards
    found = logged(second.run_dir)
    assert any("timing_s/ref" in one or "timing_s/reference" in one for one in found)

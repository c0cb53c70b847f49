"""``mapper: auto`` in runs: it picks a plan for this machine, prints it, runs it, and compares."""

from __future__ import annotations

import pytest

import rlframe
from tests.e2e.replays import logged
from tests.e2e.small import make_model, make_questions, options

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]


def run_and_read(tmp_path, capfd, **more):
    """What a run told about its plan, and its figures by stage: predicted, measured."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    run = rlframe.fit(**options(tmp_path, model, questions, strategy="fsdp", **more))
    assert run.summary["status"] == "finished"
    told = capfd.readouterr().err
    table = told.split("mapper auto: seconds a step, predicted and measured\n")[1].splitlines()[:4]
    rows = {name: (float(a), float(b)) for name, a, b in (line.split() for line in table)}
    last = [step for step in logged(run.run_dir) if "timing_s/step" in step][-1]
    assert rows["collect"][1] == pytest.approx(last["timing_s/gen"], abs=1e-3)
    return told, rows


def check(told, rows):
    for words in ("mapper auto: ", "s a step", "pool train: 1 x ", "fsdp, micro-batch"):
        assert words in told
    assert list(rows) == ["collect", "prepare", "learn", "publish"]
    for stage in ("collect", "learn"):
        assert min(rows[stage]) > 0, rows


@pytest.mark.usefixtures("one_ray")
def test_a_plan_is_picked_printed_run_and_compared(tmp_path, capfd):
    """On Ray, with the sizes of the config."""
    pytest.importorskip("ray")
    mapper = {"name": "auto", "together": ["policy+rollout"]}
    cluster = {"name": "ray", "cpus": 2.0}
    check(*run_and_read(tmp_path, capfd, mapper=mapper, cluster=cluster))


def test_a_run_goes_on_with_the_sizes_that_were_found(tmp_path, capfd):
    mapper = {"name": "auto", "sizes": "search"}
    told, rows = run_and_read(tmp_path, capfd, mapper=mapper)
    check(told, rows)
    assert "micro-batch 8" in told

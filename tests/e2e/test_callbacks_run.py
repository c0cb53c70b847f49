"""Callbacks in a real run: which verbs come when, and a callback that ends it."""

from __future__ import annotations

import json

import pytest

import rlframe
from rlframe.interfaces.loop import Callback
from tests.e2e.small import make_model, make_questions, options


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


def test_the_verbs_come_in_order(inputs, tmp_path):
    told: list = []

    class Notes(Callback):
        def on_fit_start(self, orchestrator):
            told.append(("fit_start", orchestrator.step))

        def on_step_start(self, orchestrator):
            told.append(("step_start", orchestrator.step))

        def on_step_end(self, orchestrator, metrics):
            told.append(("step_end", orchestrator.step))

        def on_snapshot_saved(self, orchestrator, path):
            told.append(("saved", orchestrator.step))

        def on_fit_end(self, orchestrator):
            told.append(("fit_end", orchestrator.step))

    rlframe.fit(**options(tmp_path, *inputs, callback=[Notes]))
    assert told == [
        ("fit_start", 0),
        ("step_start", 0),
        ("step_end", 1),
        ("step_start", 1),
        ("step_end", 2),
        ("saved", 2),
        ("fit_end", 2),
    ]


def test_what_a_callback_ends_is_saved(inputs, tmp_path):
    class Enough(Callback):
        def on_step_end(self, orchestrator, metrics):
            if orchestrator.step == 2:
                orchestrator.stop_reason = "enough"

    done = rlframe.fit(**options(tmp_path, *inputs, steps=9, callback=[Enough]))
    assert done.summary["status"] == "stopped: enough"
    assert [p.name for p in (done.run_dir / "snapshots").iterdir()] == ["step-000002"]
    again = rlframe.fit(resume=done.run_dir, steps=3, callback=[])
    assert again.summary["status"] == "finished"
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]

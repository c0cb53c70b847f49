"""Timelines of real runs: every stage is there, in order; ``rlframe timeline`` draws them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlframe.cli.main import main
from rlframe.timeline import busy_s, read_timeline
from tests.e2e.test_schedulers_run import SMALL, run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    data = {**SMALL["data"], "validate": "builtin:arithmetic?split=test&size=4"}
    names = ("sync", "one-step-off")
    return {name: run(folder, name, {"name": name}, data=data) for name in names}


@pytest.mark.parametrize("name", ["sync", "one-step-off"])
def test_every_stage_of_every_step_is_there(runs, name):
    spans = read_timeline(runs[name])
    stages = {(span.pool, span.stage) for span in spans}
    assert {("controller", s) for s in ("gen", "update_actor", "update_weights")} <= stages
    assert {("controller", "validation"), ("controller", "snapshot")} <= stages
    assert {("train", s) for s in ("generate", "update", "save", "hand_over")} <= stages
    assert {span.step for span in spans if span.stage == "update"} == {1, 2, 3, 4}
    assert all(span.end >= span.start for span in spans)
    updates = [span for span in spans if span.stage == "update"]
    assert [span.version for span in updates] == [0, 1, 2, 3]
    assert all(span.tokens > 0 for span in updates)
    rollouts = (runs[name] / "rollouts").glob("step-*.jsonl")
    lines = [json.loads(line) for file in rollouts for line in file.read_text().splitlines()]
    answers = sum(len(line["token_ids"]) for line in lines)
    made = sum(span.tokens for span in spans if span.stage == "generate")
    assert made >= answers  # validation is in it


def test_in_sync_nothing_is_generated_while_the_policy_learns(runs):
    assert _beside(runs["sync"]) == 0
    assert _beside(runs["one-step-off"]) > 0


def _beside(run_dir: Path) -> float:
    """Seconds of updates in which something was generated."""
    spans = read_timeline(run_dir)
    updates = [(s.start, s.end) for s in spans if s.stage == "update"]
    plays = [(s.start, s.end) for s in spans if s.stage == "generate"]
    return busy_s(updates) + busy_s(plays) - busy_s(updates + plays)


def test_the_command_prints_and_writes_what_it_is_asked_for(runs, tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("html", "svg", "chrome")}
    flags = [text for kind, file in files.items() for text in (f"--{kind}", str(file))]
    assert main(["timeline", str(runs["sync"]), *flags]) == 0
    text, told = capsys.readouterr()
    assert told.splitlines() == [f"written: {file}" for file in files.values()]
    assert "4 steps" in text
    assert " 0.00 s" not in text
    assert "critical path" in text
    assert "<svg" in files["html"].read_text()
    assert files["svg"].read_text().startswith("<svg")
    spans = read_timeline(runs["sync"])
    events = json.loads(files["chrome"].read_text())["traceEvents"]
    assert sum(one["ph"] == "X" for one in events) == len(spans)
    assert main(["timeline", str(runs["sync"]), "--json", "--steps", "2:3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 2
    assert 0 <= found["pools"]["train"]["idle"] < 1
    assert found["critical_path"]["stages_s"]["update"] > 0


@pytest.mark.parametrize(("steps", "words"), [("x", "two numbers"), ("90:99", "has steps 1 to 4")])
def test_steps_that_are_not_there_are_said(runs, steps, words, capsys):
    assert main(["timeline", str(runs["sync"]), "--steps", steps]) == 2
    assert words in capsys.readouterr().err


def test_a_run_without_one_is_said(tmp_path, capsys):
    assert main(["timeline", str(tmp_path)]) == 1
    assert "run.timeline_mb" in capsys.readouterr().err

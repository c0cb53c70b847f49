"""Reading a run: whole, half-written, damaged, old; what is missing is told."""

from __future__ import annotations

import fcntl
import json

import pytest

from rlframe.errors import ConfigError
from rlframe.report import read_run
from rlframe.report.runs import name_apart
from tests.unit.report.made import make_run


def test_a_whole_run_is_read_without_a_note(tmp_path):
    run = read_run(make_run(tmp_path / "a", 3))
    assert run.notes == []
    assert (run.status, run.seed, run.steps) == ("finished", "3", 40)
    assert run.series("some/other").values == [float(n) for n in range(1, 41)]
    assert {key for key in run.tokens} == {(1, 2), (11, 22), (21, 42), (31, 62)}


def test_a_line_that_was_cut_off_is_left_out_and_counted(tmp_path):
    folder = make_run(tmp_path / "a")
    for name in ("metrics.jsonl", "samples.jsonl"):
        body = (folder / name).read_text()
        (folder / name).write_text(body[: len(body) - 9])
    run = read_run(folder)
    assert run.steps == 39
    assert [n for n in run.notes if "1 line cut off" in n and n.startswith("metrics.jsonl")]
    assert len(run.samples) == 7


@pytest.mark.parametrize("name", ["config.json", "summary.json", "placement.json"])
def test_a_file_that_is_missing_or_damaged_is_a_note(tmp_path, name):
    folder = make_run(tmp_path / "a")
    for damage in ("{", "[1]", None):
        if damage is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(damage)
        run = read_run(folder)
        assert [note.split()[0] for note in run.notes] == [name]
        assert run.steps == 40


def test_a_run_that_has_taken_no_step(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    run = read_run(folder)
    assert run.status == "ended without a word"
    assert (run.steps, run.metrics, run.samples) == (0, (), [])
    assert len(run.notes) == 6


def test_bytes_that_are_no_text_do_no_harm(tmp_path):
    folder = make_run(tmp_path / "a")
    for name in ("metrics.jsonl", "timeline.jsonl", "config.json"):
        (folder / name).write_bytes(b"\xff\xfe\x00nonsense\n")
    run = read_run(folder)
    assert run.steps == 0
    assert len(run.notes) == 3


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    folder = make_run(tmp_path / "a")
    with (folder / ".lock").open("w") as file:
        assert read_run(folder).status == "finished"
        fcntl.flock(file, fcntl.LOCK_EX)
        assert read_run(folder).status == "running"


def test_later_lines_of_a_resumed_run_hold(tmp_path):
    folder = make_run(tmp_path / "a")
    line = {"step": 1, "group_id": 2, "episode_id": 1, "row": 0, "tokens": ["again"]}
    with (folder / "tokens.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert [row["tokens"] for row in read_run(folder).tokens[1, 2]] == [["again"]]


def test_validation_in_a_line_of_its_own_joins_its_step(tmp_path):
    folder = make_run(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 40, "val/reward/mean": 0.9}) + "\n")
    run = read_run(folder)
    assert run.rows[-1]["val/reward/mean"] == 0.9
    assert run.rows[-1]["some/other"] == 40.0


def test_no_run_is_an_error_that_names_what_is_near(tmp_path):
    make_run(tmp_path / "runs" / "a")
    with pytest.raises(ConfigError, match=r"holds no run.*There are runs in it: a\."):
        read_run(tmp_path / "runs")
    with pytest.raises(ConfigError, match="no folder"):
        read_run(tmp_path / "nothing")


def test_seeds_are_one_experiment_and_other_options_are_not(tmp_path):
    one, two = (read_run(make_run(tmp_path / f"{n}", n)) for n in (0, 1))
    other = read_run(make_run(tmp_path / "other", 0, lr=1.0))
    assert one.experiment == two.experiment != other.experiment


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [read_run(make_run(tmp_path / part / "run")) for part in ("x", "y")]
    name_apart(runs)
    assert [run.name for run in runs] == ["x/run", "y/run"]

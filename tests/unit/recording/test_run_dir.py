from __future__ import annotations

import gc
import json
import math
import os
import stat
from datetime import datetime
from types import SimpleNamespace

import pytest
import yaml

from rlframe.config import RunConfig
from rlframe.errors import ConfigError, SnapshotError
from rlframe.recording.run_dir import config_file, open_run, read_run_config
from rlframe.recording.summary import read_summary, write_summary
from rlframe.snapshots.durable import replace_text
from rlframe.snapshots.snapshot import SnapshotStore

NOW = datetime(2026, 3, 4, 5, 6, 7)


def config(tmp_path, *, algo="grpo", lr=0.1, **run):
    options = RunConfig(dir=str(tmp_path / "runs"), **run)
    values = {"steps": 3, "run": {"name": options.name}, "algo": {"name": algo}, "lr": lr}
    return SimpleNamespace(
        run=options, algo=SimpleNamespace(name=algo), to_dict=lambda: json.loads(json.dumps(values))
    )


def with_snapshots(place, *steps):
    for step in steps:
        SnapshotStore(place.path, 9).save(step, lambda directory: None, {"step": step})
    return place.path


def test_a_new_run_has_a_name_from_algorithm_and_time(tmp_path):
    place = open_run(config(tmp_path), now=NOW)
    assert place.path == tmp_path / "runs" / "grpo-20260304-050607"
    assert place.snapshot is None
    assert read_run_config(place.path)["lr"] == 0.1
    assert yaml.safe_load(config_file(place.path).read_text()) == read_run_config(place.path)


def test_runs_of_one_second_do_not_collide(tmp_path):
    places = [open_run(config(tmp_path), now=NOW) for _ in range(3)]
    names = ["grpo-20260304-050607", "grpo-20260304-050607-2", "grpo-20260304-050607-3"]
    assert [place.path.name for place in places] == names


def test_a_file_of_the_users_gives_its_class_as_name(tmp_path):
    name = open_run(config(tmp_path, algo="/a/my methods.py:Mine"), now=NOW).path.name
    assert name == "Mine-20260304-050607"


def test_a_name_that_is_taken_is_an_error_with_two_ways_out(tmp_path):
    path = open_run(config(tmp_path, name="mine")).path
    assert path.name == "mine"
    with pytest.raises(ConfigError, match=r"choose another run\.name.*--resume .*runs/mine"):
        open_run(config(tmp_path, name="mine"))


def test_an_empty_folder_of_that_name_may_be_used(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert open_run(config(tmp_path, name="mine")).path.name == "mine"


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"no run can be written in '.*runs'.*Set run\.dir"):
        open_run(config(tmp_path))


def test_two_processes_never_write_one_run(tmp_path):
    place = open_run(config(tmp_path, name="mine"))
    with_snapshots(place, 5)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_run(config(tmp_path), place.path)
    path = place.path
    del place
    assert open_run(config(tmp_path), path).path == path


def test_a_run_is_resumed_from_its_newest_snapshot(tmp_path):
    path = with_snapshots(open_run(config(tmp_path)), 5, 10)
    (path / "snapshots" / ".tmp-000011-x").mkdir()
    place = open_run(config(tmp_path), str(path))
    assert place.path == path
    assert place.snapshot == path / "snapshots" / "step-000010"
    assert sorted(p.name for p in place.snapshot.parent.iterdir()) == ["step-000005", "step-000010"]


def test_a_snapshot_is_resumed_and_later_ones_stay_until_it_got_somewhere(tmp_path):
    path = with_snapshots(open_run(config(tmp_path)), 5, 10)
    place = open_run(config(tmp_path), path / "snapshots" / "step-000005")
    assert place.path == path
    assert place.snapshot.name == "step-000005"
    assert [p.name for p in SnapshotStore(path).paths()] == ["step-000005", "step-000010"]
    with_snapshots(place, 6)
    assert [p.name for p in SnapshotStore(path).paths()] == ["step-000005", "step-000006"]


def test_a_damaged_snapshot_is_not_resumed(tmp_path):
    path = with_snapshots(open_run(config(tmp_path)), 5, 10)
    (path / "snapshots" / "step-000005" / "state.json").write_text("{}")
    with pytest.raises(SnapshotError, match=r"state\.json is damaged"):
        open_run(config(tmp_path), path / "snapshots" / "step-000005")
    assert len(SnapshotStore(path).paths()) == 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: path / "nothing", ConfigError, "is not there"),
        (lambda path: path.parent, ConfigError, "neither a run nor a snapshot"),
        (lambda path: path, SnapshotError, "no snapshot to go on from"),
    ],
)
def test_what_cannot_be_resumed_is_said(tmp_path, make, error, message):
    path = open_run(config(tmp_path)).path
    with pytest.raises(error, match=message):
        open_run(config(tmp_path), make(path))


def test_auto_starts_anew_where_there_is_nothing(tmp_path):
    said: list[str] = []
    place = open_run(config(tmp_path), "auto", say=said.append, now=NOW)
    assert place.snapshot is None
    assert "a new one" in said[0]


def test_auto_names_the_newest_run_of_another_config_and_what_differs(tmp_path):
    for number, lr in enumerate((0.2, 0.3)):
        made = with_snapshots(open_run(config(tmp_path, algo="sft", lr=lr), now=NOW), 5)
        os.utime(made / "config.json", ns=(1000 + number, 1000 + number))
    unsaved = open_run(config(tmp_path, lr=0.4), now=NOW).path
    said: list[str] = []
    place = open_run(config(tmp_path, algo="sft"), "auto", say=said.append, now=NOW)
    assert place.path not in (made, unsaved)
    assert said[0].endswith(f"a new one. The newest there, {made.name}, differs in lr")
    open_run(config(tmp_path), "auto", say=said.append, now=NOW)
    assert said[1].endswith("differs in algo.name, lr")


def test_auto_takes_the_newest_run_of_this_config_that_has_a_snapshot(tmp_path):
    def made(lr, when, *steps):
        path = with_snapshots(open_run(config(tmp_path, lr=lr), now=NOW), *steps)
        os.utime(path / "config.json", ns=(when, when))
        return path

    made(0.1, 1000, 5)
    wanted = made(0.1, 3000, 5, 10)
    made(0.2, 4000, 5)
    made(0.1, 5000)
    said: list[str] = []
    place = open_run(config(tmp_path, lr=0.1), "auto", say=said.append)
    assert place.path == wanted
    assert place.snapshot.name == "step-000010"
    assert "step-000010" in said[0]


def test_auto_of_a_named_run_takes_that_one(tmp_path):
    with_snapshots(open_run(config(tmp_path, lr=0.2), now=NOW), 5)
    named = with_snapshots(open_run(config(tmp_path, name="mine")), 7)
    place = open_run(config(tmp_path, name="mine", lr=0.2), "auto", say=lambda text: None)
    assert place.path == named
    fresh = open_run(config(tmp_path, name="other"), "auto", say=lambda text: None)
    assert (fresh.path.name, fresh.snapshot) == ("other", None)


def test_auto_of_a_name_whose_run_ended_before_its_first_snapshot(tmp_path):
    """A job that is started again and again by one command must not stop for ever."""
    asked, said = config(tmp_path, name="mine"), []
    path = open_run(asked).path
    for number in (1, 2):
        (path / "metrics.jsonl").write_text(f"{number}\n")
        gc.collect()
        place = open_run(asked, "auto", say=said.append)
        assert (place.path, place.snapshot) == (path, None)
        assert not (path / "metrics.jsonl").exists()
        aside = path.with_name(f"mine.unsaved-{number}")
        assert (aside / "metrics.jsonl").read_text() == f"{number}\n"
        assert f"is {aside} now" in said[-1]
        if number == 1:
            (path / "metrics.jsonl").write_text("")
            with pytest.raises(ConfigError, match="in use by another process"):
                open_run(asked, "auto", say=said.append)
        del place


def test_auto_passes_over_a_damaged_snapshot_and_says_so(tmp_path):
    path = with_snapshots(open_run(config(tmp_path)), 5, 10)
    (path / "snapshots" / "step-000010" / "state.json").write_text("{}")
    with pytest.raises(SnapshotError, match="newest snapshot is damaged"):
        open_run(config(tmp_path), path)
    said: list[str] = []
    assert open_run(config(tmp_path), "auto", say=said.append).snapshot.name == "step-000005"
    assert "damaged" in said[0]


def test_a_summary_is_whole_and_strict_json(tmp_path):
    path = write_summary(tmp_path, {"val_after": 0.9, "steps": 3, "tokens_per_s": math.nan})
    summary = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert summary == read_summary(tmp_path)
    assert summary["val_before"] is None
    assert summary["val_after"] == 0.9
    assert summary["tokens_per_s"] is None
    assert {"status", "steps", "wall_s", "skipped"} <= set(summary)
    path.write_text("{")
    with pytest.raises(SnapshotError, match=r"summary\.json"):
        read_summary(tmp_path)


def test_replacing_text_keeps_the_old_one_when_it_fails(tmp_path):
    path = tmp_path / "x"
    replace_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400

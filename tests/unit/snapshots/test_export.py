from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlframe.fit_api
from rlframe.errors import ConfigError, SnapshotError
from rlframe.snapshots.export import export
from rlframe.snapshots.snapshot import SnapshotStore


class Engine:
    """Stands in for a policy: its weights are one file."""

    fails = False
    closed = False

    def load(self, directory: Path) -> None:
        self.weights = (directory / "weights").read_bytes()

    def export(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(self.weights)
        if self.fails:
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    made.read = []

    def build_policy(config, kind):
        assert kind == "policy"
        made.read.append(config.seed)
        return made

    monkeypatch.setattr(rlframe.fit_api, "build_policy", build_policy)
    return made


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / "one"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"seed": 3}))
    for step in (5, 10):
        SnapshotStore(path, 9).save(step, lambda folder, step=step: write(folder, step), {})
    return path


def write(folder: Path, step: int) -> None:
    (folder / "policy").mkdir()
    (folder / "policy" / "weights").write_bytes(b"w%d" % step)


def test_the_newest_snapshot_is_exported_under_the_runs_config(run, engine, tmp_path):
    out = export(run, tmp_path / "deep" / "out")
    assert (out / "model.safetensors").read_bytes() == b"w10"
    assert engine.read == [3]
    assert engine.closed
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_snapshot_and_an_empty_folder_may_be_named(run, engine, tmp_path):
    (tmp_path / "out").mkdir()
    out = export(run / "snapshots" / "step-000005", tmp_path / "out")
    assert (out / "model.safetensors").read_bytes() == b"w5"


def test_a_folder_with_files_is_left_alone(run, engine, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    for target in (tmp_path / "out", tmp_path / "out" / "mine"):
        with pytest.raises(ConfigError, match="not empty"):
            export(run, target)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda run: run.parent / "two", ConfigError, "is not there"),
        (lambda run: run.parent, ConfigError, "neither a run nor a snapshot"),
    ],
)
def test_no_run_is_said(run, engine, tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        export(make(run), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_snapshot_is_said(engine, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SnapshotError, match=r"no snapshot yet.*run\.save_every"):
        export(tmp_path, tmp_path / "out")


def test_a_damaged_snapshot_is_not_exported(run, engine, tmp_path):
    (run / "snapshots" / "step-000010" / "policy" / "weights").write_bytes(b"w11")
    with pytest.raises(SnapshotError, match="policy/weights is damaged"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_snapshot_without_a_policy_is_said(run, engine, tmp_path):
    SnapshotStore(run, 9).save(11, lambda folder: None, {})
    with pytest.raises(SnapshotError, match="has no policy"):
        export(run, tmp_path / "out")


def test_a_full_disk_leaves_nothing(run, engine, tmp_path):
    engine.fails = True
    with pytest.raises(SnapshotError, match="No space left"):
        export(run, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]
    assert engine.closed


def test_a_place_that_cannot_be_written_is_said(run, engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="nothing can be written"):
        export(run, tmp_path / "file" / "out")

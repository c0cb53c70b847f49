"""Snapshots written beside training hold what was there when they were begun."""

from __future__ import annotations

import errno
import importlib
import json
from pathlib import Path
from typing import ClassVar

import pytest

import rlframe
from rlframe.calling.background import BackgroundCall
from rlframe.errors import SnapshotError
from rlframe.interfaces.loop import Callback
from rlframe.snapshots.manifest import read_manifest
from rlframe.snapshots.snapshot import SnapshotStore
from tests.e2e.test_resume import STEPS, figures, settings, unbroken, weights

__all__ = ["unbroken"]


class Late(BackgroundCall):
    """Does nothing before its result is asked for: training has gone on by then."""

    def __init__(self, call, name: str = "") -> None:
        self._call = call

    @property
    def done(self) -> bool:
        return False

    def result(self):
        return self._call()


def full_at(monkeypatch, target: str, call: int) -> None:
    """The disk is full at the ``call``-th call of a function."""
    module, _, name = target.rpartition(".")
    real, seen = getattr(importlib.import_module(module), name), []

    def writes(*given, **more):
        seen.append(given)
        if len(seen) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given, **more)

    monkeypatch.setattr(target, writes)


class Told(Callback):
    """Notes the step after which it was told, and of which snapshot."""

    seen: ClassVar[list[tuple[int, str]]] = []

    def on_snapshot_saved(self, orchestrator, path: str) -> None:
        assert (Path(path) / "manifest.json").is_file()
        self.seen.append((orchestrator.step, Path(path).name))


def hashes(run_dir: Path) -> dict[str, dict[str, str]]:
    """Sums of the models' files of every snapshot."""
    found = {}
    for path in SnapshotStore(run_dir).paths():
        files = read_manifest(path).files
        found[path.name] = {name: files[name][1] for name in files if name.startswith("policy/")}
    return found


@pytest.mark.parametrize("late", [False, True])
def test_they_hold_what_was_there_when_they_were_begun(unbroken, tmp_path, monkeypatch, late):
    if late:
        monkeypatch.setattr("rlframe_strategies.engine.BackgroundCall", Late)
        monkeypatch.setattr("rlframe.recording.saving.BackgroundCall", Late)
    Told.seen.clear()
    made = rlframe.fit(**settings(tmp_path, "beside", save_in_background=True), callback=[Told])
    assert hashes(made.run_dir) == hashes(unbroken)
    assert len(hashes(made.run_dir)) == STEPS
    assert figures(made.run_dir) == figures(unbroken)
    # The next snapshot takes up the one before it; the last one is waited for.
    assert [name for _, name in Told.seen] == [f"step-{n:06d}" for n in range(1, STEPS + 1)]
    if late:
        assert [step for step, _ in Told.seen] == [2, 3, 4, 5, 5]


def test_it_goes_on_from_each_of_them(unbroken, tmp_path):
    given = settings(tmp_path, "first", save_in_background=True) | {"steps": 3}
    first = rlframe.fit(**given).run_dir
    again = rlframe.fit(resume=SnapshotStore(first).paths()[1], steps=STEPS).run_dir
    expected, found = weights(unbroken), weights(again)
    assert all(expected[name].equal(found[name]) for name in expected)


@pytest.mark.parametrize(
    ("target", "call"),
    [
        # A snapshot has two tensor files, the rank's and the state's.
        ("safetensors.torch.save_file", 5),
        ("rlframe.snapshots.snapshot.write_manifest", 3),
    ],
)
def test_a_full_disk_is_told_and_costs_nothing_older(tmp_path, monkeypatch, target, call):
    """The third snapshot fails, in a rank's writing or in publishing it."""
    full_at(monkeypatch, target, call)
    given = settings(tmp_path, "full", save_in_background=True)
    with pytest.raises(SnapshotError, match=r"step 3 could not be written.*No space.*untouched"):
        rlframe.fit(**given)
    monkeypatch.undo()
    run = tmp_path / "full"
    whole = [path.name for path in SnapshotStore(run).paths()]
    # What was reached when it was told is saved as at any failure.
    assert whole[:2] == ["step-000001", "step-000002"]
    assert "step-000003" not in whole
    assert [p.name for p in (run / "snapshots").iterdir() if p.name.startswith(".")] == []
    summary = json.loads((run / "summary.json").read_text())
    assert "No space left" in summary["status"]
    again = rlframe.fit(resume=run)
    assert figures(again.run_dir)[-1]["step"] == STEPS


class Breaks(Callback):
    """Ends the run by an exception while a snapshot is on its way."""

    def on_step_end(self, orchestrator, metrics) -> None:
        if orchestrator.step == 3:
            raise ValueError("broken on purpose")


def test_a_run_that_breaks_keeps_the_snapshot_that_is_on_its_way(tmp_path, monkeypatch):
    monkeypatch.setattr("rlframe_strategies.engine.BackgroundCall", Late)
    monkeypatch.setattr("rlframe.recording.saving.BackgroundCall", Late)
    given = settings(tmp_path, "broken", save_in_background=True)
    with pytest.raises(Exception, match="broken on purpose"):
        rlframe.fit(**given, callback=[Breaks])
    names = [path.name for path in SnapshotStore(tmp_path / "broken").paths()]
    assert names[:2] == ["step-000001", "step-000002"]

"""Under async every prompt is learned from once, whatever kills the driver and whenever."""

from __future__ import annotations

import errno
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import rlframe
from rlframe.errors import SnapshotError
from rlframe.snapshots import snapshot
from rlframe.snapshots.snapshot import SnapshotStore
from tests.e2e.test_resume import start
from tests.e2e.test_schedulers_run import SMALL, learned, run

STEPS = 6
ASYNC = {"name": "async", "staleness": 2}
RUN = {"save_every": 1, "keep": 2, "dump_rollouts": True}


def saved(folder: Path) -> int:
    """The step of the newest snapshot, 0 before there is any."""
    paths = SnapshotStore(folder).paths()
    return int(paths[-1].name.partition(".")[0].removeprefix("step-")) if paths else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_prompt_once_over_any_number_of_kills(tmp_path):
    """Killed at any moment after further steps were saved; groups are always open and waiting."""
    folder = tmp_path / "run"
    options = {**SMALL, "steps": STEPS, "scheduler": ASYNC}
    options["run"] = {"dir": str(tmp_path), "name": "run", **RUN}
    source = random.Random(1)
    kills = 0
    for wanted in (1, 3, 4):
        process = start(options)
        while process.poll() is None and saved(folder) < wanted:
            time.sleep(0.01)
        time.sleep(source.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=120)
        kills += process.returncode == -signal.SIGKILL
    assert kills == 3
    last = start(options)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    steps = learned(folder)
    assert [len(groups) for groups in steps] == [4] * STEPS
    assert Counter(g for groups in steps for g in groups) == Counter(range(4 * STEPS))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(json.loads(line)["training/staleness/max"] <= 2 for line in lines)


def test_a_full_disk_leaves_the_old_snapshot_and_what_is_open(tmp_path, monkeypatch):
    whole = snapshot.write_manifest

    def full(directory: Path, step: int, world: int) -> None:
        if step == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(directory, step, world)

    monkeypatch.setattr(snapshot, "write_manifest", full)
    with pytest.raises(SnapshotError, match="No space left"):
        run(tmp_path, "run", ASYNC)
    folder = tmp_path / "run"
    newest = SnapshotStore(folder).latest()
    assert newest is not None
    assert newest.step == 2
    assert not list((folder / "snapshots").glob(".tmp-*"))
    monkeypatch.setattr(snapshot, "write_manifest", whole)
    rlframe.fit(resume=folder)
    assert Counter(g for groups in learned(folder) for g in groups) == Counter(range(16))

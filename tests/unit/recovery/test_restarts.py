"""Which errors are followed by a restart, how many, after what wait, and what is written down."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path

import pytest

from rlframe.config import RunConfig
from rlframe.errors import (
    ConfigError,
    DataError,
    EngineError,
    LostError,
    MethodFault,
    RewardError,
    RolloutError,
    SnapshotError,
    StuckError,
    SyncError,
    TrainingError,
    WorkerError,
)
from rlframe.recovery.restarts import Broken, Recovery, read_restarts


def died(number: int = 1) -> WorkerError:
    return WorkerError("policy", 1, "host", f"the worker (process {number}) died: killed")


def recovery(folder: Path, restarts: int = 9, wait_s: float = 1.0):
    waits, said = [], []
    options = RunConfig(max_restarts=restarts, restart_wait_s=wait_s)
    return Recovery(folder, options, said.append, waits.append), waits, said


MENDABLE = [died(), StuckError("x"), SyncError("x"), LostError("x"), EngineError("x")]
LASTING = [
    ConfigError("x"),
    DataError("x"),
    RewardError("x"),
    RolloutError("x"),
    SnapshotError("x"),
    TrainingError("x"),
    MethodFault("policy", 1, "host", "MyMethod.loss raised"),
    ValueError("x"),
]


@pytest.mark.parametrize("error", MENDABLE, ids=lambda e: type(e).__name__)
def test_what_new_workers_may_mend_is_followed_by_a_restart(error, tmp_path):
    one, waits, said = recovery(tmp_path)
    one.after(Broken(pickle.loads(pickle.dumps(error)), 3, None))
    assert waits == [1.0]
    assert "restart 1 of 9 from the start" in said[0]


@pytest.mark.parametrize("error", LASTING, ids=lambda e: type(e).__name__)
def test_what_they_cannot_mend_ends_the_run(error, tmp_path):
    one, waits, _ = recovery(tmp_path)
    with pytest.raises(type(error)) as caught:
        one.after(Broken(error, 3, None))
    assert caught.value is error
    assert not waits
    assert read_restarts(tmp_path) == []


def test_no_more_than_were_asked_for(tmp_path):
    one, waits, _ = recovery(tmp_path, restarts=2)
    for number in range(2):
        one.after(Broken(died(number), 3, None))
    with pytest.raises(WorkerError) as caught:
        one.after(Broken(died(3), 3, None))
    assert caught.value.__notes__ == ["after 2 restarts (run.max_restarts)"]
    assert len(waits) == len(read_restarts(tmp_path)) == 2


def test_none_by_default(tmp_path):
    one, waits, _ = recovery(tmp_path, restarts=RunConfig().max_restarts)
    with pytest.raises(WorkerError):
        one.after(Broken(died(), 3, None))
    assert not waits


def test_the_wait_doubles_until_a_snapshot_comes(tmp_path):
    one, waits, _ = recovery(tmp_path, restarts=20)
    older, newer = tmp_path / "step-000001", tmp_path / "step-000002"
    for number, saved in enumerate([older, older, older, newer, newer]):
        one.after(Broken(died(number), number, saved))
    assert waits == [1, 2, 4, 1, 2]
    for number in range(8):
        one.after(Broken(died(10 + number), 9, newer))
    assert max(waits) == waits[-1] == 60


def test_the_same_error_at_the_same_step_is_not_tried_again(tmp_path):
    """A bug in an engine comes back; a death of another process, or at another step, is new."""
    one, waits, _ = recovery(tmp_path)
    one.after(Broken(WorkerError("policy", 0, "h", "update: KeyError: 'x'"), 3, None))
    one.after(Broken(WorkerError("policy", 0, "h", "update: KeyError: 'x'"), 4, None))
    with pytest.raises(WorkerError) as caught:
        one.after(Broken(WorkerError("policy", 0, "h", "update: KeyError: 'x'"), 4, None))
    assert "the same came again" in caught.value.__notes__[0]
    assert len(waits) == 2


def test_a_run_that_was_asked_to_stop_stops(tmp_path):
    one, waits, _ = recovery(tmp_path)
    with pytest.raises(WorkerError):
        one.after(Broken(died(), 3, None, stopping=True))
    assert not waits


def test_what_happened_is_written_down(tmp_path):
    one, _, _ = recovery(tmp_path, wait_s=0.5)
    one.after(Broken(died(7), 3, tmp_path / "snapshots" / "step-000002"))
    (found,) = read_restarts(tmp_path)
    assert found.pop("at").endswith("+00:00")
    assert found == {
        "step": 3,
        "reason": "role 'policy', rank 1 on host: the worker (process 7) died: killed",
        "snapshot": "step-000002",
        "waited_s": 0.5,
    }
    with (tmp_path / "restarts.jsonl").open("a") as file:
        file.write('{"step": 5, "rea')
    assert len(read_restarts(tmp_path)) == 1


def test_nothing_of_the_life_that_ended_is_held(tmp_path):
    class Part:
        pass

    def life() -> Broken:
        part = Part()
        seen.append(weakref.ref(part))
        try:
            raise died()
        except WorkerError as error:
            return Broken(error, 0, None)

    seen: list = []
    one, _, _ = recovery(tmp_path)
    broken = life()
    assert seen[0]() is not None
    one.after(broken)
    gc.collect()
    assert seen[0]() is None

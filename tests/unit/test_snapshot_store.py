from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlframe.errors import SnapshotError
from rlframe.snapshots.snapshot import SnapshotStore, load_snapshot


def write(directory: Path) -> None:
    (directory / "policy").mkdir()
    (directory / "policy" / "boxes.safetensors").write_bytes(bytes(range(256)) * 8)


def saved(tmp_path: Path, *steps: int, keep: int = 9) -> SnapshotStore:
    store = SnapshotStore(tmp_path, keep)
    for step in steps:
        store.save(step, write, {"step": step, "w": torch.full((3,), float(step))}, world=2)
    return store


def names(store: SnapshotStore) -> list[str]:
    return [path.name for path in store.paths()]


def test_a_snapshot_comes_back(tmp_path):
    store = saved(tmp_path, 10)
    snapshot = store.latest()
    assert snapshot.path == tmp_path / "snapshots" / "step-000010"
    assert (snapshot.step, snapshot.world) == (10, 2)
    assert snapshot.state()["step"] == 10
    assert torch.equal(store.load(snapshot.path)["w"], torch.full((3,), 10.0))
    assert (snapshot.path / "policy" / "boxes.safetensors").stat().st_size == 2048
    versions = json.loads((snapshot.path / "manifest.json").read_text())["versions"]
    assert set(versions) == {"rlframe", "python", "torch"}


def test_no_snapshot_is_none(tmp_path):
    store = SnapshotStore(tmp_path, 1)
    assert store.latest() is None
    assert store.paths() == []


def test_the_newest_are_kept(tmp_path):
    store = saved(tmp_path, 5, 20, 100, 1_000_000, keep=2)
    assert names(store) == ["step-000100", "step-1000000"]
    assert store.latest().step == 1_000_000
    assert sorted(p.name for p in store.directory.iterdir()) == sorted(names(store))


def test_a_step_that_is_saved_again_replaces_the_first_and_never_overwrites_it(tmp_path):
    store = saved(tmp_path, 5, 10, keep=2)
    again = store.save(10, write, {"step": "again"})
    assert again.name == "step-000010.1"
    assert names(store) == ["step-000005", "step-000010.1"]
    assert store.latest().state() == {"step": "again"}
    store.save(10, write, {"step": "third"})
    assert store.latest().state() == {"step": "third"}
    assert names(store) == ["step-000005", "step-000010.2"]


def test_later_snapshots_go_when_an_earlier_one_is_resumed(tmp_path):
    store = saved(tmp_path, 5, 10, 15)
    assert [p.name for p in store.drop_after(5)] == ["step-000010", "step-000015"]
    assert names(store) == ["step-000005"]
    assert store.drop_after(5) == []


def test_saving_after_a_resume_drops_the_later_steps_of_another_history(tmp_path):
    store = saved(tmp_path, 5, 10, 15)
    SnapshotStore(tmp_path, 1).save(6, write, {"step": 6})
    assert names(store) == ["step-000006"]


def test_leftovers_are_cleaned_and_nothing_else(tmp_path):
    store = saved(tmp_path, 5)
    for name in (".tmp-000010-abc", ".del-xyz"):
        (store.directory / name / "policy").mkdir(parents=True)
    (store.directory / "notes").mkdir()
    assert store.latest().step == 5
    store.clean()
    assert sorted(p.name for p in store.directory.iterdir()) == ["notes", "step-000005"]


# --- damage ---------------------------------------------------------------------------------------

FILES = ("manifest.json", "state.json", "state.safetensors", "policy/boxes.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.31, 0.77, 0.999])
def test_a_flipped_bit_is_noticed_and_its_file_named(tmp_path, name, share):
    path = saved(tmp_path, 5).latest().path
    content = bytearray((path / name).read_bytes())
    content[int(share * len(content))] ^= 0x10
    (path / name).write_bytes(content)
    with pytest.raises(SnapshotError, match=name.replace(".", r"\.")):
        load_snapshot(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "longer", "empty", "gone"])
def test_a_cut_or_missing_file_is_named(tmp_path, name, change):
    file = saved(tmp_path, 5).latest().path / name
    content = file.read_bytes()
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": content[:-1], "longer": content + b"x", "empty": b""}[change])
    with pytest.raises(SnapshotError, match=name.replace(".", r"\.")):
        SnapshotStore(tmp_path, 1).latest()


def test_a_damaged_newest_one_is_passed_over_only_when_asked_and_said(tmp_path):
    store = saved(tmp_path, 5, 10)
    (store.paths()[-1] / "state.json").write_text("{}")
    with pytest.raises(SnapshotError, match=r"newest snapshot is damaged.*--resume auto.*000005"):
        store.latest()
    said: list[str] = []
    assert store.latest(auto=True, say=said.append).step == 5
    assert len(said) == 1
    assert "step-000010" in said[0]
    assert "state.json" in said[0]
    (store.paths()[0] / "state.json").write_text("{}")
    with pytest.raises(SnapshotError, match="every snapshot .* damaged"):
        store.latest(auto=True)


def test_another_format_is_refused_with_the_version_that_wrote_it(tmp_path):
    path = saved(tmp_path, 5).latest().path / "manifest.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "format": 99, "versions": {"rlframe": "7.5"}}))
    with pytest.raises(SnapshotError, match=r"format 99.*reads format 2.*rlframe 7\.5"):
        load_snapshot(path.parent)


def test_other_libraries_are_said_and_the_state_is_read(tmp_path):
    from rlframe.snapshots.manifest import _body_hash

    path = saved(tmp_path, 5).latest().path
    assert load_snapshot(path).foreign == ""
    body = json.loads((path / "manifest.json").read_text())
    del body["sha256"]
    body["versions"]["torch"] = "1.9"
    text = json.dumps({**body, "sha256": _body_hash(body)})
    (path / "manifest.json").write_text(text)
    found = load_snapshot(path)
    assert f"step-000005 was written with torch 1.9 (here {torch.__version__})" in found.foreign
    assert found.state()["step"] == 5


def test_a_manifest_cannot_point_outside(tmp_path):
    from rlframe.snapshots.manifest import _body_hash

    path = saved(tmp_path, 5).latest().path / "manifest.json"
    body = json.loads(path.read_text())
    del body["sha256"]
    body["files"]["../../secret"] = [0, ""]
    path.write_text(json.dumps({**body, "sha256": _body_hash(body)}))
    with pytest.raises(SnapshotError, match="outside"):
        load_snapshot(path.parent)


# --- writing that fails ---------------------------------------------------------------------------


def test_a_failing_writer_leaves_the_old_snapshot_alone(tmp_path):
    store = saved(tmp_path, 5, keep=1)

    def fails(directory: Path) -> None:
        write(directory)
        raise OSError(28, "No space left on device")

    with pytest.raises(SnapshotError, match=r"step 10.*No space left.*untouched.*run\.dir"):
        store.save(10, fails, {})
    assert sorted(p.name for p in store.directory.iterdir()) == ["step-000005"]
    assert store.latest().step == 5

    def stops(directory: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(10, stops, {})
    assert sorted(p.name for p in store.directory.iterdir()) == ["step-000005"]


def test_a_state_that_cannot_be_kept_is_said_before_anything_is_written(tmp_path):
    store = saved(tmp_path, 5, keep=1)
    with pytest.raises(SnapshotError, match=r"state\.algorithm is a builtins\.set"):
        store.save(10, write, {"algorithm": {1}})
    assert store.latest().step == 5


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "snapshots").write_text("")
    with pytest.raises(SnapshotError, match="could not be written"):
        SnapshotStore(tmp_path, 1).save(1, write, {})
    assert SnapshotStore(tmp_path, 1).latest() is None


def in_child(function) -> int:
    """Run in a forked process; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_full_disk_is_a_clear_error(tmp_path):
    """A limit on the size of files stands in for the disk's end: the write itself fails."""
    store = saved(tmp_path, 5, keep=1)

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(SnapshotError, match=r"step 10.*untouched"):
            store.save(10, write, {"w": torch.zeros(100_000)})

    assert in_child(save) == 0
    assert sorted(p.name for p in store.directory.iterdir()) == ["step-000005"]
    assert store.latest().step == 5


KILLER = """
import os, signal, sys
from pathlib import Path
import torch
from rlframe.snapshots.snapshot import SnapshotStore

root = Path(sys.argv[1])

def write(directory):
    (directory / "policy").mkdir()
    (directory / "policy" / "boxes").write_bytes(b"w" * 5000)

def state(step):
    return {"step": step, "w": torch.full((64,), float(step))}

def dies_at(number):
    seen = [0]
    def hook(event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.", "tempfile.")):
            if any(str(root) in str(a) for a in arguments):
                seen[0] += 1
                if seen[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def attempt(run, number, step):
    child = os.fork()
    if child == 0:
        dies_at(number)
        SnapshotStore(run, keep=1).save(step, write, state(step))
        os._exit(0)
    return os.waitpid(child, 0)[1]

number, step, found = 1, 11, set()
run = root / "run"
SnapshotStore(run, keep=1).save(10, write, state(10))
while True:
    status = attempt(run, number, step)
    store = SnapshotStore(run, keep=1)
    snapshot = store.latest()
    assert snapshot.step in (step - 1, step), (number, snapshot)
    kept = snapshot.state()
    assert kept["step"] == snapshot.step and (kept["w"] == snapshot.step).all()
    found.add(snapshot.step - step)
    store.clean()
    names = [p.name for p in store.directory.iterdir()]
    assert all(name.startswith("step-") for name in names), names
    if status == 0:
        break
    assert os.WIFSIGNALED(status), (number, status)
    number += 1
    step = snapshot.step + 1
assert number > 15, number
assert found == {0, -1}, found
print("killed at", number - 1, "places")
"""


@pytest.mark.dist
def test_kill_9_at_every_step_of_saving_leaves_the_old_or_the_new(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("killed at")


RACE = """
import os, signal, sys
from pathlib import Path
import torch
from rlframe.snapshots.snapshot import SnapshotStore

run = Path(sys.argv[1])
def write(directory):
    (directory / "policy").write_bytes(os.urandom(300_000))

step = 0
store = SnapshotStore(run, keep=2)
while True:
    step += 1
    store.save(step, write, {"step": step, "w": torch.rand(5000)})
    print(step, flush=True)
"""


@pytest.mark.dist
@pytest.mark.parametrize("after", [2, 3, 5])
def test_kill_9_while_saving_loses_at_most_one_snapshot(tmp_path, after):
    with subprocess.Popen(
        [sys.executable, "-c", RACE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if int(line) == after:
                child.kill()
                break
    snapshot = SnapshotStore(tmp_path, 2).latest()
    assert snapshot.step >= after
    assert snapshot.state()["step"] == snapshot.step

"""Whatever ends a run on Ray, no process and no file of it is left: real signals, a real driver."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.small import make_model, make_questions

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
BOUND_S = 240.0
"""A bound for a busy machine."""


class Driver:
    """``rlframe fit --cluster ray`` as a user starts it, with temporary files of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        # Ray's sockets have short paths only.
        self.temporary = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
        model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
        command = [sys.executable, "-m", "rlframe", "fit", "--algo", "grpo", "--cluster", "ray"]
        command += ["--model", str(model), "--data", f"jsonl:{questions}", "--reward", "exact"]
        command += ["data.prompts_per_step=2", "algo.samples_per_prompt=2", "algo.kl_coef=0"]
        command += ["rollout.max_new_tokens=2", f"run.dir={folder}", "run.name=run", *words]
        self.output = folder / "output"
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"},
            )

    def wait_for_step(self) -> set[int]:
        """Until a step is done; the processes that it takes."""
        self.wait_for_metrics()
        mine = self.descendants()
        assert any("raylet" in command(pid) for pid in mine)
        assert any("ray::WorkerProcess" in command(pid) for pid in mine)
        return mine

    def wait_for_metrics(self) -> None:
        """Until a step is done."""
        metrics = self.folder / "run" / "metrics.jsonl"
        end = time.monotonic() + BOUND_S
        while not (metrics.exists() and metrics.read_text().strip()):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.1)

    def descendants(self) -> set[int]:
        """All processes below the driver, down to the workers."""
        return descendants(self.process.pid)

    def assert_nothing_left(self, processes: set[int]) -> None:
        """Neither processes nor temporary files."""
        end = time.monotonic() + 60.0
        left = processes
        while (left or any(self.temporary.iterdir())) and time.monotonic() < end:
            left = {pid for pid in left if command(pid)}
            time.sleep(0.1)
        assert {command(pid) for pid in left} == set()
        assert list(self.temporary.iterdir()) == []
        self.temporary.rmdir()


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def command(pid: int) -> str:
    """The command line; empty for what has ended (also a zombie)."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode()


def descendants(ancestor: int) -> set[int]:
    found, queue = set(), [ancestor]
    while queue:
        below = children_of(queue.pop())
        found |= set(below)
        queue += below
    return found


def children_of(parent: int) -> list[int]:
    def parent_of(pid: int) -> int:
        fields = read(pid, "stat").rpartition(b")")[2].split()
        return int(fields[1]) if fields else 0

    return [pid for pid in pids() if parent_of(pid) == parent]


@pytest.fixture
def start(tmp_path):
    """Start a driver; whatever a failed test leaves of it is killed."""
    started = []

    def make(*words: str) -> Driver:
        started.append(Driver(tmp_path, *words))
        return started[-1]

    yield make
    for driver in started:
        driver.process.kill()
        driver.process.wait(10)


def test_a_killed_driver_leaves_nothing(start, tmp_path):
    """Also no weights on their way to another pool."""
    pools = ["pools.train.devices=1", "pools.samples.devices=1", "rollout.pool=samples"]
    disk = ["--checkpoint", "transport", "checkpoint.transport=disk"]
    driver = start("steps=100000", *pools, *disk, f"checkpoint.directory={tmp_path}/weights")
    processes = driver.wait_for_step()
    assert len(list((tmp_path / "weights").iterdir())) == 1
    driver.process.kill()
    driver.process.wait(10)
    driver.assert_nothing_left(processes)
    assert list((tmp_path / "weights").iterdir()) == []


def test_an_interrupted_driver_saves_and_leaves_nothing(start, tmp_path):
    driver = start("steps=100000")
    processes = driver.wait_for_step()
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.wait(BOUND_S) == 130
    driver.assert_nothing_left(processes)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] >= 1
    assert "the state is saved" in driver.output.read_text()
    assert "Traceback" not in driver.output.read_text()


def test_a_worker_that_is_killed_ends_the_run_in_seconds(start):
    driver = start("steps=100000", "--strategy", "fsdp", "pools.train.devices=2")
    processes = driver.wait_for_step()
    victim = max(pid for pid in processes if "ray::WorkerProcess" in command(pid))
    os.kill(victim, signal.SIGKILL)
    assert driver.process.wait(60) == 1
    text = driver.output.read_text()
    where = rf"rank [01] on {os.uname().nodename}: the worker \(process {victim}\) died: .+"
    assert re.search(where, text), text
    assert "Traceback" not in text
    driver.assert_nothing_left(processes)

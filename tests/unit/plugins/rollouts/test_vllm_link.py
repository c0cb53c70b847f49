"""The host process from the worker's side, without vLLM: how it fails, dies and ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlframe.errors import RolloutError
from rlframe_plugins.rollouts.vllm.processes import host_environment, linked

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def link():
    made = linked(1, gpu=False)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def test_what_goes_wrong_in_the_engine_is_told(link):
    with pytest.raises(RolloutError, match="AsyncEngineArgs|No module named 'vllm'"):
        link.call(60, "start", {"no_such_argument": 1})


def test_a_call_that_takes_too_long_is_an_error(link):
    with pytest.raises(RolloutError, match=r"did not start within 0\.001 s"):
        link.call(0.001, "start", {"no_such_argument": 1})


def test_a_killed_host_ends_every_call(link):
    _, answer = link.ask("generate", None)
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(RolloutError, match="ended|assert"):
        answer.result(60)
    for _ in range(2):
        with pytest.raises(RolloutError, match="killed by SIGKILL"):
            link.call(60, "stats")


def test_close_leaves_no_process_and_no_file(link):
    with pytest.raises(RolloutError):
        link.call(60, "start", {"no_such_argument": 1})
    folder = link._folder
    assert folder.exists()
    link.close()
    assert gone(link.pid)
    assert not folder.exists()
    with pytest.raises(RolloutError, match="was closed"):
        link.call(60, "stats")


def test_the_host_ends_with_a_worker_that_is_killed():
    code = (
        "import sys, time\n"
        "from rlframe_plugins.rollouts.vllm.processes import linked\n"
        "link = linked(1, gpu=False)\n"
        "print(link.pid, link._folder, flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        pid, folder = made.stdout.readline().split()
        host = os.pidfd_open(int(pid))
        made.kill()
    assert select.select([host], [], [], 60)[0], "the host lives on"
    os.close(host)
    while Path(folder).exists():  # its guard removes it; the test's timeout bounds this
        select.select([], [], [], 0.05)


def test_the_environment_of_the_host(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = host_environment(3, tmp_path, gpu=False)
    assert found["VLLM_LOGGING_LEVEL"] == "INFO"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["VLLM_RPC_BASE_PATH"] == str(tmp_path)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in host_environment(3, tmp_path, gpu=True)


PARENT = """
import subprocess, sys, time
from rlframe_plugins.rollouts.hosted.mortal import guarded
guard = guarded()
child = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]],
                         stdout=subprocess.PIPE, start_new_session=True, text=True)
print(guard.pid, child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(300)
"""
CHILD = """
import subprocess, sys
one = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1]], start_new_session=True)
print(one.pid, flush=True)
one.wait()
"""


def turns(pid: int) -> int:
    """How often a process has waited."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


def test_a_guard_ends_what_a_killed_process_had_started():
    """Also what its children started, in sessions of their own."""
    command = [sys.executable, "-c", PARENT, CHILD, "import time; time.sleep(300)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        guard, *pids = (int(one) for one in made.stdout.readline().split())
        handles = [os.pidfd_open(pid) for pid in pids]
        before = turns(guard)
        while turns(guard) < before + 3:  # it has looked since
            select.select([], [], [], 0.05)
        made.kill()
    for handle in handles:
        assert select.select([handle], [], [], 60)[0], "a descendant lives on"
        os.close(handle)

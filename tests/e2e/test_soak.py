"""``benchmarks/soak.py`` for a few minutes: only where ``RLFRAME_SOAK_MINUTES`` says how many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINUTES = os.environ.get("RLFRAME_SOAK_MINUTES", "")


@pytest.mark.skipif(not MINUTES, reason="RLFRAME_SOAK_MINUTES=3 runs it")
@pytest.mark.timeout(3600)
def test_a_run_whose_processes_are_killed_ends_as_one_that_is_left_alone():
    pytest.importorskip("ray")
    command = [sys.executable, "benchmarks/soak.py", "--json", "--minutes", MINUTES]
    done = subprocess.run(
        [*command, "--references", "1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    missed = [one for one in found["targets"] if not one["holds"]]
    assert not missed, found

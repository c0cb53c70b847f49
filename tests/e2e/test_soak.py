"""``benchmarks/soak.py``, its short form: ``make soak``, the last part of ``make test``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = os.environ.get("RLFRAME_SOAK_KILLS", "")
LIMIT_S = 1500
"""Many times what it takes on two quiet cores."""


@pytest.mark.skipif(
    not KILLS, reason="make soak runs it, alone: it starts and ends a Ray each time"
)
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_run_whose_processes_are_killed_ends_as_one_that_is_left_alone():
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "benchmarks/soak.py", "--json", "--kills", KILLS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    missed = [one for one in found["targets"] if not one["holds"]]
    assert not missed, found

"""What `make fit` runs: the shipped model learns to add, on questions that it never saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RLFRAME = Path(sys.executable).with_name("rlframe")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_main_job_lifts_held_out_accuracy(tmp_path):
    command = [str(RLFRAME), "fit", "--algo", "grpo", "--strategy", "fsdp"]
    # A bound for a busy machine, not a measurement.
    done = subprocess.run(
        [*command, "steps=15", "run.validate_every=0", "run.name=main"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "main"
    summary = json.loads((run / "summary.json").read_text())
    assert 0.3 < summary["val_before"] < 0.6
    assert summary["val_after"] >= 0.9
    assert summary["steps"] == 15
    assert "runs/main" in done.stdout

"""What a run needs goes away while it runs: the reader of its output, the disk."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from tests.e2e.small import make_model, make_questions


@pytest.fixture
def command(tmp_path):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    words = ["--algo", "grpo", "--strategy", "single", "--reward", "exact"]
    words += ["--model", str(model), "--data", f"jsonl:{questions}", "steps=3"]
    words += ["data.prompts_per_step=2", "algo.samples_per_prompt=2", "algo.kl_coef=0"]
    words += ["rollout.max_new_tokens=2", "cluster.threads=1", "run.save_every=1"]
    words += [f"run.dir={tmp_path}", "run.name=run"]
    return [sys.executable, "-m", "rlframe", "fit", *words]


@pytest.mark.timeout(180)
def test_a_reader_that_goes_away_does_not_end_the_run(command, tmp_path):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    errors = process.communicate()[1]
    assert process.returncode == 0, errors.decode()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 3)


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


@pytest.mark.timeout(180)
def test_a_full_disk_is_one_clear_error(command, tmp_path):
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_small_files)
    assert done.returncode == 1
    assert "the snapshot of step 1 could not be written" in done.stderr
    assert "free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "run" / "snapshots").iterdir()) == []
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 1

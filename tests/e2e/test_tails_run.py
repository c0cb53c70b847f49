"""Tail policies on the embedded engine: what ends early, goes on, or is put off; and resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rlframe
from rlframe.errors import ConfigError
from tests.e2e.test_schedulers_run import SMALL, figures, learned

STEPS, PROMPTS = 5, 4


def run(folder: Path, name: str, tail: dict | str, **more) -> Path:
    options = {"dir": str(folder), "name": name, "save_every": 1, "keep": 99, "dump_rollouts": True}
    values = {**SMALL, "checkpoint": {"name": "hybrid"}, "steps": STEPS, "run": options}
    # Hot, so that lengths differ, and with few places, so that some wait.
    values["rollout"] = {"name": "torch", "max_new_tokens": 16, "max_batch": 6, "temperature": 4.0}
    values["algo"] = {"name": "grpo", "samples_per_prompt": 4, "kl_coef": 0.0}
    return rlframe.fit(**{**values, "tail": tail, **more}).run_dir


def logged(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def episodes(run_dir: Path) -> list[dict]:
    files = sorted((run_dir / "rollouts").glob("step-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def cut_to(run_dir: Path, step: int) -> Path:
    """A copy of a run as it stood after so many steps."""
    copy = run_dir.with_name(f"{run_dir.name}-copy")
    shutil.copytree(run_dir, copy)
    for late in sorted((copy / "rollouts").glob("step-*.jsonl"))[step:]:
        late.unlink()
    return copy


@pytest.mark.parametrize("tail", ["partial", "defer"])
def test_surplus_groups_come_in_a_later_step(tmp_path, tail):
    """Every prompt once, none too old; the same along a lineage that was cut in two."""
    whole = run(tmp_path, "whole", {"name": tail, "extra": 1.0})
    groups = [group for step in learned(whole) for group in step]
    assert sorted(groups) == list(range(STEPS * PROMPTS))
    assert tail == "partial" or groups != sorted(groups)
    assert max(line["training/staleness/max"] for line in figures(whole)) <= 1
    copy = cut_to(whole, 3)
    rlframe.fit(resume=copy / "snapshots" / "step-000003")
    assert sorted(g for step in learned(copy) for g in step) == list(range(STEPS * PROMPTS))


def test_a_response_continues_under_the_next_weights(tmp_path):
    """Tokens of one response are of two versions, in order; log-probs stand beside each."""
    found = episodes(run(tmp_path, "run", {"name": "partial", "extra": 1.0}))
    versions = [episode["versions"] for episode in found]
    mixed = [one for one in versions if len(set(one)) > 1]
    assert mixed
    assert all(one == sorted(one) and max(one) - min(one) == 1 for one in mixed)


def test_early_stop_keeps_the_first_that_end(tmp_path):
    run_dir = run(tmp_path, "run", {"name": "early-stop", "extra": 0.5})
    found = episodes(run_dir)
    assert len(found) == STEPS * PROMPTS * 4
    assert any(episode["episode_id"] % 2**20 >= 4 for episode in found)
    assert all(line["collect/late_episodes"] == 2 * PROMPTS for line in logged(run_dir))


def test_deadlines_cut_or_drop(tmp_path):
    """A deadline that no response can meet leaves nothing to learn from; a generous one all."""
    easy = run(tmp_path, "easy", {"name": "deadline", "seconds": 600.0})
    assert all(line["collect/late_episodes"] == 0 for line in logged(easy))
    with pytest.raises(rlframe.errors.TrainingError, match="ended in time|no score|accepted"):
        run(tmp_path, "hard", {"name": "deadline", "seconds": 1e-9, "late": "drop"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tail": "partial", "rollout": {"name": "hf"}}, "--tail defer"),
        ({"tail": "defer", "scheduler": "one-step-off"}, "--scheduler sync"),
        ({"tail": "defer", "algo": {"name": "sft"}}, "--tail wait"),
        ({"tail": {"name": "partial", "extra": 2.0}}, "extra"),
        ({"tail": {"name": "early-stop", "extra": 0.0}}, "extra"),
        ({"tail": "partial-rollout"}, "partial"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, values, words):
    more = {"checkpoint": {"name": "hybrid", "copy": True}} if "scheduler" in values else {}
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, "run", **{**values, **more})

"""Schedulers on the real engines: order, staleness, what a snapshot keeps, what they refuse."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

import rlframe
from rlframe.errors import ConfigError
from rlframe_strategies.engine import CausalLMEngine
from tests.e2e.small import steady

SMALL = {
    "steps": 4,
    "rollout": {"name": "torch", "batch_invariant": True, "max_new_tokens": 6},
    "algo": {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.0},
    "optim": {"lr": 1e-3},
    "data": {
        "train": "builtin:arithmetic?split=train&size=40",
        "validate": None,
        "prompts_per_step": 4,
    },
    "checkpoint": {"name": "hybrid", "copy": True},
    "logger": ["jsonl"],
    "cluster": {"name": "inline", "threads": 1},
}


def run(folder: Path, name: str, scheduler: dict, **more) -> Path:
    options = {"dir": str(folder), "name": name, "save_every": 1, "keep": 99, "dump_rollouts": True}
    return rlframe.fit(**{**SMALL, "scheduler": scheduler, "run": options, **more}).run_dir


def figures(run_dir: Path) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [steady(json.loads(line), "collect/") for line in lines]


def learned(run_dir: Path) -> list[list[int]]:
    """Ids of the groups of each step."""
    files = sorted((run_dir / "rollouts").glob("step-*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [sorted({line["group_id"] for line in step}) for step in lines]


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_async_with_bound_zero_is_sync(tmp_path, algo):
    """Also where groups are refused and others drawn in their place."""
    options = {"name": algo, "samples_per_prompt": 2}
    sync = run(tmp_path, "sync", {"name": "sync"}, algo=options)
    other = run(tmp_path, "other", {"name": "async", "staleness": 0}, algo=options)
    assert figures(other) == figures(sync)
    assert learned(other) == learned(sync)


@pytest.mark.parametrize(
    ("scheduler", "oldest"),
    [
        ({"name": "one-step-off"}, 1),
        ({"name": "async", "staleness": 1, "on_update": "drain"}, 1),
        ({"name": "async", "staleness": 2, "on_update": "in-flight", "sampler": "freshest"}, 2),
        ({"name": "async", "staleness": 2, "on_update": "abort", "sampler": "windowed"}, 2),
    ],
)
def test_rollouts_beside_the_update(tmp_path, scheduler, oldest):
    """Every prompt once, in the bound; every batch but the first begins before the update ends."""
    run_dir = run(tmp_path, "run", scheduler)
    steps = learned(run_dir)
    assert [len(groups) for groups in steps] == [4] * 4
    assert sorted(g for groups in steps for g in groups) == list(range(16))
    ages = [line["training/staleness/max"] for line in figures(run_dir)]
    assert ages[0] == 0
    assert 1 <= max(ages) <= oldest
    if scheduler["name"] == "one-step-off":
        assert ages[1:] == [1.0] * 3


class Alone(CausalLMEngine):
    """Notes how long the rollout beside it decodes while it learns, seconds."""

    noted: ClassVar[list[float]] = []

    def update(self, batch, plan):
        rollout = self.peers["rollout"]
        before = rollout.stats()["busy_s"]
        found = super().update(batch, plan)
        self.noted.append(rollout.stats()["busy_s"] - before)
        return found


@pytest.mark.parametrize(
    ("way", "checkpoint"),
    [
        ("in-flight", {"name": "hybrid", "verify": 1}),
        ("abort", {"name": "hybrid"}),
        ("drain", {"name": "hybrid", "after_generation": "release"}),
    ],
)
def test_on_shared_devices_rollout_and_trainer_take_turns(way, checkpoint, tmp_path):
    Alone.noted.clear()
    scheduler = {"name": "async", "staleness": 2, "on_update": way}
    more = {"checkpoint": checkpoint, "model": {"engine": "tests.e2e.test_schedulers_run:Alone"}}
    run_dir = run(tmp_path, "run", scheduler, **more)
    steps = learned(run_dir)
    assert [len(groups) for groups in steps] == [4] * 4
    assert sorted(g for groups in steps for g in groups) == list(range(16))
    ages = [line["training/staleness/max"] for line in figures(run_dir)]
    assert 1 <= max(ages) <= 2
    assert Alone.noted == [0.0] * 4


def test_bound_zero_is_sync_where_they_take_turns(tmp_path):
    shared = {"checkpoint": {"name": "hybrid"}}
    sync = run(tmp_path, "sync", {"name": "sync"}, **shared)
    other = run(tmp_path, "other", {"name": "async", "staleness": 0}, **shared)
    assert figures(other) == figures(sync)
    assert learned(other) == learned(sync)


def test_a_snapshot_keeps_prompts_that_are_played(tmp_path):
    """Resumed from the second step, every prompt is learned from once along the lineage."""
    scheduler = {"name": "async", "staleness": 2}
    whole = run(tmp_path, "whole", scheduler)
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    for late in sorted((copy / "rollouts").glob("step-*.jsonl"))[2:]:
        late.unlink()
    rlframe.fit(resume=copy / "snapshots" / "step-000002")
    counts = Counter(group for groups in learned(copy) for group in groups)
    assert len(learned(copy)) == 4
    assert counts == Counter(range(16))


def test_stale_rollouts_learn_too(tmp_path):
    """Decoupled PPO with truncated weights on rollouts up to two versions old."""
    result = rlframe.fit(
        algo={"name": "decoupled-ppo", "rollout_correction": "truncate"},
        scheduler={"name": "async", "staleness": 2},
        checkpoint={"name": "hybrid", "copy": True},
        cluster={"name": "inline", "threads": 1},
        steps=10,
        logger=["jsonl"],
        run={"dir": str(tmp_path), "name": "run"},
    )
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert summary["val_after"] > summary["val_before"] + 0.2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scheduler": "one-step-off", "checkpoint": {"name": "hybrid"}}, "checkpoint.copy=true"),
        ({"checkpoint": {"name": "hybrid", "after_generation": "cache"}}, "on_update=drain"),
        ({"algo": {"name": "sft"}}, "no rollout"),
        ({"rollout": {"name": "hf"}}, "on_update=drain"),
        ({"scheduler": {"name": "async", "staleness": -1}}, "staleness"),
        ({"scheduler": {"name": "async", "sampler": "freshet"}}, "freshest"),
    ],
)
def test_what_cannot_overlap_is_refused(tmp_path, values, words):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, "run", **{"scheduler": {"name": "async"}, **values})

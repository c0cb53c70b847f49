"""Whole runs with tasksets of the package verifiers: ``make test-verifiers``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlframe.cli.main import main

pytest.importorskip(
    "verifiers", reason="the package verifiers is not installed: make test-verifiers"
)
pytestmark = pytest.mark.timeout(900)
"""Every episode with tools starts a program that imports the package: seconds of CPU."""
TASKSETS = Path(__file__).parents[1] / "unit/plugins/envs/tasksets"


def fit(folder, taskset, *words):
    """The command of docs/agents.md, made small; its lines of metrics."""
    command = [
        "fit", "--env", "verifiers", f"env.taskset={taskset}",
        "--data", f"verifiers:{taskset}?size=4", "steps=2", "data.prompts_per_step=2",
        "algo.samples_per_prompt=2", "rollout.max_new_tokens=4", f"run.dir={folder}",
        "run.name=run", "run.trace_every=1", "cluster.threads=1", "logger=[jsonl]", *words,
    ]  # fmt: skip
    assert main(command) == 0
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "env/turns" in line]


def test_a_taskset_of_one_turn_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TASKSETS))
    first, second = fit(tmp_path, "rl_letters")
    assert (first["env/turns"], second["env/turns"]) == (1.0, 1.0)
    assert {"reward/env/right/mean", "reward/env/short/mean"} <= set(second)
    assert second["actor/grad_norm"] >= 0.0
    traces = [json.loads(line) for path in (tmp_path / "run/traces").iterdir()
              for line in path.read_text().splitlines()]  # fmt: skip
    assert len(traces) == 8
    for trace in traces:
        assert trace["reward"] == pytest.approx(sum(trace["reward_parts"].values()))


def test_a_taskset_with_tools_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TASKSETS))
    steps = fit(tmp_path, "rl_adder", "env.max_turns=2")
    assert [line["env/turns"] >= 1 for line in steps] == [True, True]
    assert "reward/env/called/mean" in steps[-1]

"""One update in this process, its rollouts on record; others replay it and must end the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from rlframe.snapshots.export import export
from tests.e2e.small import options

PPO = {"name": "ppo", "samples_per_prompt": 2}
SGD = {"name": "sgd", "lr": 0.5, "max_grad_norm": 0.5}


def logged(run: Path) -> list[dict[str, Any]]:
    """The metrics of each step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def exported(run: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run's policy, as it exports them."""
    export(run, folder)
    return load_file(folder / "model.safetensors")


def record(folder: Path, model: Path, questions: Path, **more: Any) -> Path:
    """One update of actor and critic in this process; the run's folder."""
    given = options(folder, model, questions, **{"algo": PPO, "steps": 1, "optim": SGD, **more})
    given["run"] = {"dir": str(folder), "name": "inline", "dump_rollouts": True}
    return rlframe.fit(**given).run_dir


def replay(folder: Path, run: Path, model: Path, questions: Path, **more: Any) -> Path:
    """The same on workers of Ray, on the recorded rollouts; the run's folder."""
    given = options(folder, model, questions, **{"algo": PPO, "steps": 1, "optim": SGD, **more})
    given["rollout"] = {"name": "replay", "run": str(run), "max_new_tokens": 4}
    given["cluster"] = {"name": "ray"}
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    return done.run_dir


def check_figures(run: Path, other: Path) -> None:
    """Every metric of every step that is no time and no size, at 1e-4."""
    for one, many in zip(logged(run), logged(other), strict=True):
        same = [k for k in one if not k.startswith(("timing_s/", "perf/", "rollout/", "sync/"))]
        numbers = [k for k in same if isinstance(one[k], int | float)]
        assert {"actor/loss", "actor/grad_norm"} <= set(numbers)
        for key in numbers:
            assert many[key] == pytest.approx(one[key], rel=1e-4, abs=1e-5), key


def check_weights(run: Path, other: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of the policy at 1e-5; those of the first run."""
    one, many = exported(run, folder / "a"), exported(other, folder / "b")
    assert set(one) == set(many)
    for key in one:
        assert torch.allclose(one[key], many[key], atol=1e-5, rtol=0), key
    return one

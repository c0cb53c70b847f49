"""Adapters on Ray: sharded trainers, a rollout in its own pool that merges what comes."""

from __future__ import annotations

import json

import pytest

import rlframe
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(240), pytest.mark.usefixtures("one_ray")]


def test_replicas_compute_with_the_trainers_weights_after_every_version(tmp_path):
    """``checkpoint.verify`` ends the run where one differs; the reference has no weights."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    given = options(tmp_path, model, questions, strategy="fsdp", steps=3)
    given["model"] = {"path": str(model), "lora": {"rank": 2, "targets": ["q_proj", "up_proj"]}}
    given["algo"] |= {"kl_coef": 0.1}
    given["pools"] = {"train": {"devices": 2}, "samples": {"devices": 1}}
    given["rollout"] |= {"pool": "samples"}
    given["checkpoint"] = {"name": "transport", "verify": 1}
    given["cluster"] = {"name": "ray"}
    run = rlframe.fit(**given, optim={"lr": 0.05}).run_dir
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kl = [line["actor/kl_loss"] for line in lines]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[2] > 1e-4
    low = 4 * 2 * 2 * ((20 + 20) + (20 + 34))  # bytes, layers, rank, both sides of two targets
    assert [line["perf/sync_bytes"] for line in lines] == [low] * 3

"""Runs with vLLM on a CPU, in the trainer's pool and in one of its own; ``make test-vllm``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="rollout 'vllm' needs the package vllm: make test-vllm")

import rlframe
from rlframe.errors import SyncError
from rlframe.requests import Completion, Sampling
from rlframe.snapshots.export import export
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from tests.e2e.small import make_questions, options
from tests.unit.plugins.rollouts.vllm_stale import StaleHead

pytestmark = [pytest.mark.slow, pytest.mark.dist, pytest.mark.timeout(900)]

STEPS = 4
LEFT_S = 60.0
"""How long processes may take to end when what started them is gone."""
ROUTER = ("retries", "deaths", "returns", "waiting", "replicas_up")
APART = {
    "cluster": {"name": "ray"},
    "pools": {"train": {"devices": 1}, "samples": {"devices": 1}},
    "checkpoint": {"name": "transport", "verify": 1},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A model with a tied head, whose heads have a width that vLLM has on a CPU."""
    folder = tmp_path_factory.mktemp("inputs")
    model = char_tokenizer(tiny_model(folder / "model", hidden_size=64))
    return model, make_questions(folder / "questions.jsonl")


def fit(folder: Path, inputs, temperature: float, pool: str, engine=None, **more) -> Path:
    """Steps that change every weight by much; the run's folder, with a snapshot of each.

    ``engine``: further arguments of vLLM's.
    """
    given = options(folder, *inputs, steps=STEPS, optim={"lr": 0.02}, **more)
    given["rollout"] = {
        "name": "vllm",
        "pool": pool,
        "temperature": temperature,
        "max_new_tokens": 6,
        "kv_cache_gib": 0.25,
        "engine": {"block_size": 32, **(engine or {})},
    }
    given["algo"]["samples_per_prompt"] = 4
    given["run"] |= {"save_every": 1, "keep": STEPS, "dump_rollouts": True}
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    return done.run_dir


def rollouts(run: Path) -> list[dict]:
    """Every response of a run."""
    files = sorted((run / "rollouts").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check_logprobs(run: Path, inputs, temperature: float, folder: Path) -> None:
    """What vLLM says of each token is what the trainer's weights of that version say, at 1e-3."""
    first = RolloutReference(inputs[0])
    lines = rollouts(run)
    sampling = Sampling(temperature=temperature)
    for version in range(1, STEPS):
        (snapshot,) = (run / "snapshots").glob(f"*{version}")
        now = RolloutReference(char_tokenizer(export(snapshot, folder / str(version))))
        name = "model.embed_tokens.weight"
        assert (now.tensors()[name] - first.tensors()[name]).abs().max() > 0.01
        mine = [line for line in lines if set(line["versions"]) == {version}]
        assert len(mine) >= 8
        off = gap = 0.0
        for line in mine:
            got = Completion(
                tuple(line["token_ids"]), tuple(line["logprobs"]), tuple(line["versions"]), "stop"
            )
            said = torch.tensor(got.logprobs)
            off = max(off, (now.logprobs(line["prompt_ids"], got, sampling) - said).abs().max())
            gap = max(gap, (first.logprobs(line["prompt_ids"], got, sampling) - said).abs().max())
        print(f"version {version}: off by {off:.1e} nats, the first weights by {gap:.2f}")  # -rP
        assert off < 1e-3, (version, off)
        assert gap > 0.05, "the update changed too little to show a mistake"


def check_figures(run: Path) -> None:
    """Each step says what vLLM and the router before it did, and how things stand."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    steps = [row for row in rows if "timing_s/step" in row]
    assert len(steps) == STEPS
    for row in steps:
        assert row["rollout/running"] == row["rollout/waiting"] == 0
        assert row["rollout/kv_total_tokens"] > row["rollout/kv_used_tokens"] >= 0
        assert 0 <= row["rollout/prefix_hit_ratio"] <= 1
        assert row["rollout/tokens_per_s"] > 0
        assert row["rollout/requests"] == steps[0]["rollout/requests"] > 0
        router = {name: row[f"collect/router/{name}"] for name in ROUTER}
        assert router == dict.fromkeys(ROUTER, 0) | {"replicas_up": 1}


def left_over() -> list[str]:
    """Command lines of vLLM's processes that run, but for those of other checkouts."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                place = (entry / "cwd").resolve(strict=True)
            except OSError:
                continue
            if place != Path.cwd() and (place / "rlframe").is_dir():
                continue
            if "VLLM::" in line or "rollouts.vllm.host" in line:
                found.append(line)
    return found


def none_left() -> None:
    """A kill takes its time, so they are waited for."""
    end = time.monotonic() + LEFT_S
    while (left := left_over()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, f"of vLLM's processes these run on: {left}"


def test_in_a_pool_of_its_own(inputs, tmp_path, one_ray):
    """Weights cross pools each step, the embedding among them; at a low temperature."""
    run = fit(tmp_path, inputs, 0.3, "samples", **APART)
    check_logprobs(run, inputs, 0.3, tmp_path)
    check_figures(run)
    none_left()


def test_beside_the_trainer(inputs, tmp_path):
    """In one process tree with it, asleep while it trains; checked every version."""
    hybrid = {"name": "hybrid", "verify": 1, "after_generation": "release"}
    run = fit(tmp_path, inputs, 1.0, "train", checkpoint=hybrid)
    check_logprobs(run, inputs, 1.0, tmp_path)
    none_left()


@pytest.mark.parametrize("on_update", ["abort", "in-flight", "drain"])
def test_a_stream_whose_weights_change_meanwhile(on_update, inputs, tmp_path, one_ray):
    """Versions of a response never fall; whoever is stopped is continued to its end.

    Where weights wait for what runs, each response has one version.
    """
    given = options(tmp_path, *inputs, steps=STEPS, **APART)
    given["scheduler"] = {"name": "async", "staleness": 1, "on_update": on_update}
    given["rollout"] = {
        "name": "vllm",
        "pool": "samples",
        "max_new_tokens": 40,
        "min_new_tokens": 40,
        "kv_cache_gib": 0.25,
    }
    given["run"] |= {"dump_rollouts": True}
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    lines = rollouts(done.run_dir)
    assert len(lines) >= STEPS * 8
    for line in lines:
        assert len(line["token_ids"]) == 40
        assert line["versions"] == sorted(line["versions"])
        assert all(found <= 0 for found in line["logprobs"])
        assert on_update != "drain" or len(set(line["versions"])) == 1
    assert {version for line in lines for version in line["versions"]} > {0, 1}
    none_left()


def test_verify_sees_a_head_that_keeps_the_old_weights(inputs, tmp_path):
    """What rlframe does for tied heads is switched off inside vLLM's worker."""
    with pytest.raises(SyncError, match="tied lm_head computes with other weights"):
        fit(
            tmp_path,
            inputs,
            1.0,
            "train",
            checkpoint={"name": "hybrid", "verify": 1},
            engine={"worker_extension_cls": f"{StaleHead.__module__}.StaleHead"},
        )
    none_left()

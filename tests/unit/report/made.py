"""Folders of runs as ``rlframe fit`` leaves them, made without training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

MESH = {"dp": 2, "pp": 1, "tp": 2, "pg": 1, "tg": 1}


def config(seed: int = 0, lr: float = 1e-5, **algo: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "steps": 40,
        "model": {"path": "pkg:rlframe_templates/models/tiny"},
        "algo": {"name": "grpo", "samples_per_prompt": 8, **algo},
        "optim": {"lr": lr},
        "reward": {"parts": [{"name": "exact", "weight": 1.0}]},
        "run": {"name": f"seed{seed}"},
    }


def figures(step: int, seed: int, *, bad: bool = False) -> dict[str, Any]:
    wave = math.sin(step / 3 + seed) * 0.03
    return {
        "step": step,
        "critic/rewards/mean": 0.4 + 0.01 * step + wave,
        "critic/rewards/zero_variance_groups": 0.9 if bad else 0.2,
        "actor/entropy": 1.0 / (1 + (0.6 if bad else 0.01) * step),
        "actor/pg_clipfrac": 0.4 if bad else 0.02,
        "actor/grad_norm": None if bad and step == 3 else 1.0 + wave,
        "actor/rollout_logprob_gap": 0.3 if bad else 1e-6,
        "response_length/mean": (20.0 + step * (4 if bad else 0.1)),
        "timing_s/step": 2.0 + wave,
        "some/other": float(step),
    }


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def samples(step: int, response: str, reward: float) -> list[dict[str, Any]]:
    told = {"step": step, "prompt": f"What is {step}+1?", "response": response, "tokens": 3}
    one = {**told, "group_id": step * 2, "reward": reward, "reward/exact": reward}
    two = {**told, "group_id": step * 2 + 1, "reward": 1 - reward, "reward/exact": 1 - reward}
    return [{**row, "finish_reason": "stop"} for row in (one, two)]


def spans(steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"life": 0.0, "host": "h"}]
    for step in range(1, steps + 1):
        for stage, start, length in (("generate", 0.0, 1.0), ("update", 1.2, 0.6)):
            begin = step * 2.0 + start
            for rank in range(2):
                row = {"lane": f"train:{rank}", "pool": "train", "role": "policy", "stage": stage}
                row |= {"start": begin, "end": begin + length, "step": step, "version": step}
                rows.append({**row, "tokens": 10})
    return rows


def make_run(
    folder: Path,
    seed: int = 0,
    *,
    steps: int = 40,
    bad: bool = False,
    response: str = "It is 42.",
    **options: Any,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(seed, **options)))
    lines(folder / "metrics.jsonl", [figures(n, seed, bad=bad) for n in range(1, steps + 1)])
    shown = range(1, steps + 1, 10)
    lines(folder / "samples.jsonl", [row for n in shown for row in samples(n, response, 0.25)])
    words = [response[:2], response[2:5], response[5:]]
    token = {"episode_id": 1, "row": 0, "tokens": words, "response_mask": [1, 1, 0]}
    token |= {"rollout_logprobs": [-0.1, -4.0, -0.5], "advantages": [1.2, -0.7, 0.0]}
    lines(folder / "tokens.jsonl", [{"step": n, "group_id": n * 2, **token} for n in shown])
    lines(folder / "timeline.jsonl", spans(min(steps, 6)))
    meshes = {"policy": MESH, "rollout": MESH}
    pools = {"train": {"nodes": 1, "devices": 4}}
    placed = {"rlframe": "0.1.0", "device": "cpu", "pools": pools, "mesh_of": meshes}
    placed["pool_of"] = {"policy": "train", "rollout": "train"}
    (folder / "placement.json").write_text(json.dumps(placed))
    summary = {"status": "finished", "steps": steps, "val_before": 0.4, "val_after": 0.7}
    summary |= {"wall_s": 83.0, "tokens_per_s": 1234.5, "skipped": []}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder

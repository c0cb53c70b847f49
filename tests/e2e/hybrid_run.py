"""A run that trains in one layout and generates in another on the same ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rlframe
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from tests.e2e.small import make_questions, options

STEPS = 6
HIDDEN = 32


def check_learns(folder: Path, strategy: dict[str, Any], devices: int) -> None:
    """Every version is verified; log-probabilities agree with the trainer's; the reward rises."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4}
    model = char_tokenizer(tiny_model(folder / "model", **sizes, num_key_value_heads=2))
    questions = make_questions(folder / "questions.jsonl")
    given = options(folder, model, questions, steps=STEPS, optim={"lr": 0.03}, seed=1)
    given |= {"strategy": strategy, "pools": {"train": {"devices": devices}}}
    given["cluster"] = {"name": "ray"}
    given["rollout"] = {"name": "torch", "max_new_tokens": 4, "tensor_parallel": 2}
    given["checkpoint"] = {"name": "hybrid", "verify": 1, "after_generation": "release"}
    given["algo"] = {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.0}
    given["data"] = {"train": f"jsonl:{questions}", "validate": f"jsonl:{questions}"}
    given["data.prompts_per_step"] = 8
    given["run"] |= {"validate_every": STEPS, "save_every": 0}
    done = rlframe.fit(**given)
    assert done.summary["status"] == "finished"
    lines = [json.loads(x) for x in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = (one["val/reward/mean"] for one in lines if "val/reward/mean" in one)
    assert last > first + 0.3, (first, last)
    steps = [one for one in lines if "perf/sync_bytes" in one]
    assert len(steps) == STEPS
    for one in steps:
        assert one["actor/rollout_logprob_gap"] < 1e-5
        assert one["perf/sync_bytes"] > 0
        # 37 words in four parts and in two: one embedding is on the wrong side.
        assert one["perf/sync_redundant_bytes"] <= HIDDEN * 4

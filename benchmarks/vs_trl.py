"""A GRPO step of rlframe against TRL 1.16's GRPOTrainer: same model, prompts, forced lengths.

8 prompts x 4 samples x 64 new tokens, prompt 32 tokens, a random Llama of 4 M parameters, fp32 on
the CPU, no gradient checkpointing. TRL runs at the better of its thread counts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

from common import CACHE, main, rival_python, side, spread, target

PROMPTS, SAMPLES, NEW, PROMPT = 8, 4, 64, 32
TRL = ("torch==2.13.0", "trl==1.16.0", "transformers==5.20.0", "numpy==2.4.6")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs")
    parser.add_argument("--steps", type=int, default=4, help="steps a run; the first is left out")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    trl = rival_python("trl", TRL)
    model = CACHE / "llama-4m"
    if not (model / "config.json").exists():
        sys.path.insert(0, str(CACHE.parent / "sides"))
        from make_model import make

        make(str(model))
    words = random.Random(0)
    prompts = [
        " ".join(f"w{words.randrange(3, 4096)}" for _ in range(PROMPT)) for _ in range(PROMPTS * 8)
    ]
    spec = json.dumps(
        {
            "model": str(model),
            "prompts": prompts,
            "batch": PROMPTS,
            "samples": SAMPLES,
            "new": NEW,
            "steps": arguments.steps,
            "microbatch": PROMPTS * SAMPLES * (NEW + PROMPT),
        }
    )
    runs: dict[str, list[dict[str, Any]]] = {"rlframe": [], "trl-1": [], "trl-2": []}
    for _ in range(arguments.rounds):
        runs["rlframe"].append(side(sys.executable, "rlframe_step.py", spec, threads=1))
        for threads in (1, 2):
            runs[f"trl-{threads}"].append(side(trl, "trl_step.py", spec, threads=threads))
    seconds = {
        name: spread([s for r in found for s in r["step_s"]]) for name, found in runs.items()
    }
    memory = {name: max(r["peak_gb"] for r in found) for name, found in runs.items()}
    best = min(("trl-1", "trl-2"), key=lambda name: seconds[name]["median"])
    parts = {
        name: spread([s for r in runs["rlframe"] for s in r["parts_s"][name]])
        for name in runs["rlframe"][0]["parts_s"]
    }
    ratio = seconds[best]["median"] / seconds["rlframe"]["median"]
    results = {"step_s": seconds, "peak_gb": memory, "rlframe_parts_s": parts, "best_trl": best}
    return results, [
        target("step, times faster than TRL (one process)", ratio, 1.8),
        target(
            "peak memory as a share of TRL's", memory["rlframe"] / memory[best], 0.5, below=True
        ),
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure, options)

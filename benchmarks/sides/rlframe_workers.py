"""The same GRPO steps of rlframe on two one-thread workers of Ray: where each one's time goes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import rlframe
from rlframe.interfaces.loop import Callback

ENGINE = Path(__file__).with_name("timed_engine.py")


def reward(response_ids: list[int]) -> float:
    return float(sum(response_ids) % 7)


class Workers(Callback):
    """After every step: what each worker did in it, and the memory of all processes together."""

    made: ClassVar[Workers]

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        Workers.made = self
        self.steps: list[list[dict[str, Any]]] = []
        self.all_gb = 0.0

    def on_step_start(self, orchestrator: Any) -> None:
        orchestrator.roles["policy"].call("spent").result()

    def on_step_end(self, orchestrator: Any, metrics: Any) -> None:
        self.steps.append(orchestrator.roles["policy"].call("spent").result())
        self.all_gb = max(self.all_gb, _all_gb())


def main() -> None:
    spec = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        rows = fit(spec, Path(folder))
    assert all(row["response_length/min"] == spec["new"] for row in rows)
    assert all(row["prompt_length/max"] == spec["prompt"] for row in rows)
    steps = Workers.made.steps[1:]
    found = {
        "step_s": [row["timing_s/step"] for row in rows],
        "cpu_s": [sum(worker["parts_cpu_s"]["all"] for worker in step) for step in steps],
        "stages_s": [
            {name.removeprefix("timing_s/"): v for name, v in row.items() if "timing_s/" in name}
            for row in rows
        ],
        "workers_s": [[worker["parts_s"] for worker in step] for step in steps],
        "workers_cpu_s": [[worker["parts_cpu_s"] for worker in step] for step in steps],
        "memory_gb": {
            "worker": max(worker["peak_gb"] for step in steps for worker in step),
            "peak": Workers.made.all_gb,
        },
        "flops_imbalance": max(row["perf/flops_imbalance"] for row in rows),
        "driver_bytes": max(row["perf/driver_bytes"] for row in rows),
    }
    print(json.dumps(found))


def fit(spec: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    """The metrics of every step but the first."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in spec["prompts"]))
    done = rlframe.fit(
        "grpo",
        model={"path": spec["model"], "engine": f"{ENGINE}:TimedEngine"},
        data={"train": f"jsonl:{data}", "prompts_per_step": spec["batch"]},
        reward=reward,
        steps=spec["steps"],
        strategy=spec["strategy"],
        cluster={"name": "ray", "threads": 1, "logical_cpus": 4, "worker_output": False},
        transfer="ray",
        pools={"train": {"devices": spec["workers"]}},
        optim={"lr": 1e-6, "tokens_per_microbatch": spec["microbatch"]},
        rollout={"max_new_tokens": spec["new"], "min_new_tokens": spec["new"]},
        run={"dir": str(folder), "name": "bench", "save_every": 0, "samples_every": 0},
        logger=["jsonl"],
        callback=[Workers()],
        **{"algo": {"kl_coef": 0.0, "samples_per_prompt": spec["samples"]}},
    )
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if "timing_s/step" in row][1:]


def _all_gb() -> float:
    """Memory of this process and all that it started; what they share is counted once."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    mine = {os.getpid()}
    for _ in range(len(parents)):
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            break
        mine |= more
    return sum(map(_share_gb, mine))


def _share_gb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


if __name__ == "__main__":
    main()

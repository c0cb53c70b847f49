"""Some GRPO steps of rlframe with forced lengths: seconds a step, its parts, peak memory."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

import rlframe


def reward(response_ids: list[int]) -> float:
    return float(sum(response_ids) % 7)


def main() -> None:
    spec = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in spec["prompts"]))
        done = rlframe.fit(
            "grpo",
            model=spec["model"],
            data={"train": f"jsonl:{data}", "prompts_per_step": spec["batch"]},
            reward=reward,
            steps=spec["steps"],
            strategy=spec.get("strategy", "single"),
            optim={"lr": 1e-6, "tokens_per_microbatch": spec["microbatch"]},
            rollout={"max_new_tokens": spec["new"], "min_new_tokens": spec["new"]},
            run={"dir": folder, "name": "bench", "save_every": 0, "samples_every": 0},
            logger=["jsonl"],
            **{"algo": {"kl_coef": 0.0, "samples_per_prompt": spec["samples"]}},
        )
        lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "timing_s/step" in row][1:]
    assert all(row["response_length/min"] == spec["new"] for row in rows)
    parts = {k: [r[k] for r in rows] for k in rows[0] if k.startswith("timing_s/")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"step_s": parts.pop("timing_s/step"), "parts_s": parts, "peak_gb": peak}))


if __name__ == "__main__":
    main()

"""Some GRPO steps of rlframe with forced lengths: seconds a step, its parts, peak memory."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # noqa: F401  what every run imports, before memory is first looked at
import transformers.models.llama.modeling_llama  # noqa: F401
from parts import Parts, gemm_gflops, products, resident_gb
from transformers import AutoConfig

import rlframe


def reward(response_ids: list[int]) -> float:
    return float(sum(response_ids) % 7)


def main() -> None:
    spec = json.loads(sys.argv[1])
    imports_gb, gemm = resident_gb(), gemm_gflops()
    with tempfile.TemporaryDirectory() as folder:
        rows = fit(spec, Path(folder))
    parts = Parts.made
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert all(row["response_length/min"] == spec["new"] for row in rows)
    assert all(row["prompt_length/min"] == spec["prompt"] for row in rows)
    assert all(row["prompt_length/max"] == spec["prompt"] for row in rows)
    gemm = max(gemm, gemm_gflops())
    of = products(
        AutoConfig.from_pretrained(spec["model"]),
        spec["batch"] * spec["samples"],
        spec["batch"],
        spec["prompt"],
        spec["new"],
    )
    found: dict[str, Any] = {
        "step_s": [row["timing_s/step"] for row in rows],
        "cpu_s": parts.cpu_s[1:],
        "parts_s": parts.steps[1:],
        "gflop": of(*parts.fed[-1]),
        "gemm_gflops": gemm,
        "fed_tokens": parts.fed[-1][0],
        "memory_gb": {"imports": imports_gb, "first step": parts.start_gb, "peak": peak_gb},
    }
    found["gflop"] = {name: value / 1e9 for name, value in found["gflop"].items()}
    if spec["profile"]:
        found |= {"peaks_gb": parts.peaks, "operators": parts.operators}
    print(json.dumps(found))


def fit(spec: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    """The metrics of every step but the first."""
    data = folder / "prompts.jsonl"
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
        run={"dir": str(folder), "name": "bench", "save_every": 0, "samples_every": 0},
        logger=["jsonl"],
        callback=[Parts(Parts.Config(spec["steps"], spec["profile"]))],
        **{"algo": {"kl_coef": 0.0, "samples_per_prompt": spec["samples"]}},
    )
    lines = (done.run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if "timing_s/step" in row][1:]


if __name__ == "__main__":
    main()

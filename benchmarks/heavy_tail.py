"""Responses of heavy-tailed lengths: tokens a second of rollout `torch` against `hf`.

16 prompts x G = 8, prompt 32 tokens, a random Llama of 4 M parameters, fp32, one thread. Its next
token is nearly uniform over 4,096 words and 64 of them end a response, so lengths are geometric
with mean 64, cut at 512. Also the padding waste of training on the lengths that were drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from common import CACHE, main, side, spread, target

PROMPTS, SAMPLES, PROMPT, MEAN, MOST = 16, 8, 32, 64, 512
HF_BATCHES = (32, 64)
"""Sequences of one call of generate; the better one is compared with."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts of a round")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    model = CACHE / "llama-4m-1024"
    if not (model / "config.json").exists():
        side(sys.executable, "make_model.py", str(model), "1024", threads=1)
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(arguments.rounds):
        spec = {
            "model": str(model),
            "prompts": arguments.prompts,
            "samples": SAMPLES,
            "prompt": PROMPT,
            "mean": MEAN,
            "most": MOST,
            "seed": number,
        }
        for name, engine, batch in (
            ("torch", "torch", arguments.prompts * SAMPLES),
            *((f"hf-{batch}", "hf", batch) for batch in HF_BATCHES),
        ):
            text = json.dumps({**spec, "engine": engine, "max_batch": batch})
            runs.setdefault(name, []).append(side(sys.executable, "heavy_tail.py", text, threads=1))
    speed = {
        name: spread([sum(r["lengths"]) / r["seconds"] for r in found])
        for name, found in runs.items()
    }
    best = max((f"hf-{batch}" for batch in HF_BATCHES), key=lambda name: speed[name]["median"])
    lengths = [n for r in runs["torch"] for n in r["lengths"]]
    packing = {
        name: max(r["packing"][name] for r in runs["torch"]) for name in runs["torch"][0]["packing"]
    }
    results = {
        "tokens_per_s": speed,
        "best_hf": best,
        "torch_parts_s": [r["parts_s"] for r in runs["torch"]],
        "response_tokens": {"mean": sum(lengths) / len(lengths), **spread(lengths)},
        "waste": packing,
    }
    ratio = speed["torch"]["median"] / speed[best]["median"]
    return results, [
        target("rollout torch, times the tokens/s of hf", ratio, 5),
        target("padding waste in training, share of tokens", packing["tokens"], 0.05, below=True),
        target(
            "padding waste in training, share of operations",
            packing["operations"],
            0.05,
            below=True,
        ),
    ]


if __name__ == "__main__":
    main(__doc__ or "", measure, options, quick={"rounds": 1})

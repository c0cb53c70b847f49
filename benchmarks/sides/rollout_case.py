"""What the sides of `benchmarks/rollout.py` share: prompts, lengths, what they report."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

Case = dict[str, Any]
Answer = tuple[list[int], list[float]]


def prompts_of(case: Case) -> list[list[int]]:
    """Token ids of each request, ``samples`` after each other with one prompt."""
    words = random.Random(case["seed"])
    prompts = [
        [words.randrange(1000, 40000) for _ in range(case["prompt"])]
        for _ in range(case["requests"] // case["samples"])
    ]
    return [prompt for prompt in prompts for _ in range(case["samples"])]


def lengths_of(case: Case) -> list[int]:
    """New tokens of each request: all alike, or geometric with the same mean, cut at ``most``."""
    if not case["heavy"]:
        return [case["mean"]] * case["requests"]
    draw = random.Random(case["seed"] + 1)
    mean = case["mean"]
    return [min(case["most"], 1 + int(draw.expovariate(1 / mean))) for _ in range(case["requests"])]


def report(spec: Case, generate: Callable[[Case], Sequence[Answer]]) -> None:
    """Warm up, run each case once, and print seconds and tokens."""
    warm = {**spec["cases"][0], "requests": 4, "samples": 2, "mean": 2, "heavy": False}
    generate(warm)
    runs = []
    for case in spec["cases"]:
        start = time.perf_counter()
        answers = generate(case)
        seconds = time.perf_counter() - start
        wanted = lengths_of(case)
        assert [len(ids) for ids, _ in answers] == wanted, "lengths are not those asked for"
        assert all(len(ids) == len(logprobs) for ids, logprobs in answers)
        assert all(-50 < value <= 1e-4 for _, logprobs in answers for value in logprobs)
        runs.append({"name": case["name"], "seconds": seconds, "tokens": sum(wanted)})
    print(json.dumps({"runs": runs}))

"""Add with a calculator: ``--config recipes/tiny_calculator.yaml --model DIR``.

``python -m rlframe_templates.envs.calculator DIR`` makes the model: the shipped one is shown some
sums with a call of the tool and some without, many of them wrong, so that it knows both. When to
call and when to add in its head is left to reinforcement learning.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Calculator", "demonstrations", "main", "make_model"]

_MODEL = "pkg:rlframe_templates/models/tiny"
_TOOL_SHARE = 0.3
"""Share of the demonstrations that use the tool."""


class Calculator:
    """A sum to be answered, and a tool that adds."""

    def reset(self, prompt: str, answer: str) -> str:
        """Begin with the question, "17+25="."""
        self._answer, self._said = answer, ""
        return prompt

    def add(self, sum: str) -> str:
        """Add two numbers.

        Args:
            sum: the numbers with a plus between them, "17+25".
        """
        first, _, second = sum.partition("+")
        return f"{int(first) + int(second)}="

    def step(self, text: str) -> None:
        """The first message without a call is the answer."""
        self._said = text

    def reward(self) -> float:
        """1 for the right answer."""
        return float(self._said == self._answer)


def demonstrations(rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows for ``sft``: a call, what follows the tool's answer, or a sum without the tool."""
    draw = random.Random(seed)
    for _ in range(rows):
        a, b = draw.randrange(100), draw.randrange(100)
        question, total = f"{a}+{b}=", str(a + b)
        call = f'[add("{a}+{b}")]'
        slip = str((a // 10 + b // 10) % 10 * 10 + (a % 10 + b % 10) % 10)
        if draw.random() >= _TOOL_SHARE:
            said = slip if draw.random() < 0.55 else total
            yield {"prompt": question, "response": said}
        else:
            yield {"prompt": question, "response": call}
            yield {"prompt": f"{question}{call}<eos>{total}=", "response": total}


def make_model(directory: Path, steps: int = 130, seed: int = 0) -> Path:
    """Warm the shipped model up and export it; a minute or two. Raises ConfigError."""
    from rlframe import fit
    from rlframe.snapshots.export import export

    batch = 64
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "demonstrations.jsonl"
        lines = [json.dumps(row) + "\n" for row in demonstrations(batch * steps, seed)]
        data.write_text("".join(lines), encoding="utf-8")
        done = fit(
            "sft",
            model=_MODEL,
            data={"train": f"jsonl:{data}", "prompts_per_step": batch, "shuffle": False},
            steps=steps,
            seed=seed,
            rollout={"max_new_tokens": 24},
            optim={"lr": 1e-3, "schedule": "linear", "warmup_steps": 10},
            run={"dir": scratch, "name": "warm-up", "save_every": 0, "samples_every": 0},
            cluster={"name": "inline", "threads": 1},
        )
        return export(done.run_dir, directory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the model in the folder that is named."""
    parser = argparse.ArgumentParser("python -m rlframe_templates.envs.calculator")
    parser.add_argument("directory", type=Path, help="a new folder")
    parser.add_argument("--steps", type=int, default=130, help="of the warm-up (default: 130)")
    options = parser.parse_args(arguments)
    print(make_model(options.directory, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())

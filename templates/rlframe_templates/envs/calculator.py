"""Multiply with a calculator: ``--config recipes/tiny_calculator.yaml --model DIR``.

``python -m rlframe_templates.envs.calculator DIR`` makes the model: the shipped one can add in its
head and knows no products. It is shown how a call of the tool is written, and that its answer is
what to say; but in three of four questions to add instead: that only calls pay is left to learn.
"""

from __future__ import annotations

import argparse
import json
import operator
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Calculator", "demonstrations", "main", "make_model"]

_MODEL = "pkg:rlframe_templates/models/tiny"
_CALLS = 0.25
"""Share of the questions that are shown with a call; the others are shown with a sum."""
_DOES = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_WRITTEN = re.compile(r"([0-9]{1,9})([-+*])([0-9]{1,9})")


class Calculator:
    """A product of two numbers, "07*25=", and a tool that calculates."""

    def reset(self, prompt: str) -> str:
        """Begin with the two numbers of the row's sum, to be multiplied, of two digits each."""
        a, b = (int(number) for number in prompt.rstrip("=").split("+"))
        self._answer, self._said = f"{a * b:04}", ""
        return f"{a:02}*{b:02}="

    def calc(self, formula: str) -> str:
        """Calculate.

        Args:
            formula: two numbers with +, - or * between, "17*25".
        """
        found = _WRITTEN.fullmatch(formula)
        if found is None:
            return "?"
        return f"{_DOES[found[2]](int(found[1]), int(found[3])):04}="

    def step(self, text: str) -> None:
        """The first message without a call is the answer."""
        self._said = text

    def reward(self) -> float:
        """1 for the right answer, written with four digits."""
        return float(self._said == self._answer)


def demonstrations(rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows for ``sft``: a question with a call or a sum, and what follows the tool's answer."""
    draw = random.Random(seed)
    for _ in range(rows):
        a, b = draw.randrange(100), draw.randrange(100)
        question, answer = f"{a:02}*{b:02}=", f"{a * b:04}"
        call = f'[calc("{a:02}*{b:02}")]'
        said = call if draw.random() < _CALLS else f"{a + b:04}"
        yield {"prompt": question, "response": said}
        yield {"prompt": f"{question}{call}<eos>{answer}=", "response": answer}


def make_model(directory: Path, steps: int = 220, seed: int = 0) -> Path:
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
            optim={"lr": 2e-3, "schedule": "linear", "warmup_steps": 10},
            run={"dir": scratch, "name": "warm-up", "save_every": 0, "samples_every": 0},
            cluster={"name": "inline", "threads": 1},
        )
        return export(done.run_dir, directory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the model in the folder that is named."""
    parser = argparse.ArgumentParser("python -m rlframe_templates.envs.calculator")
    parser.add_argument("directory", type=Path, help="a new folder")
    parser.add_argument("--steps", type=int, default=220, help="of the warm-up (default: 220)")
    options = parser.parse_args(arguments)
    print(make_model(options.directory, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())

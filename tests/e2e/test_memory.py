"""A run's memory does not grow with its steps; `benchmarks/memory.py` looks at 200 of them."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

import rlframe
from rlframe.interfaces.loop import Callback
from rlframe.timeline import Span
from rlframe_algorithms.grpo import GRPO
from tests.e2e.small import make_model, make_questions, options

STEPS, WARM = 10, 4


class Held(Callback):
    """Objects, tensors among them, that Python's collector knows of after each step.

    But for the spans of the timeline, which wait to be written a few steps at a time.
    """

    noted: ClassVar[list[int]] = []

    def on_step_end(self, orchestrator: Any, metrics: Any) -> None:
        gc.collect()
        self.noted.append(sum(type(one) is not Span for one in gc.get_objects()))


class Forgetful(GRPO):
    """Keeps the log-probabilities of every step."""

    seen: ClassVar[list[Any]] = []

    def policy_loss(self, out: Any, batch: Any) -> Any:
        self.seen.append(out.logprobs.detach())
        return super().policy_loss(out, batch)


def growth(folder: Any, algorithm: Any) -> int:
    """Objects that the steps after the first few leave behind."""
    Held.noted.clear()
    given = options(folder, make_model(folder / "model"), make_questions(folder / "q.jsonl"))
    given |= {
        "steps": STEPS,
        "algo": {"samples_per_prompt": 2, "kl_coef": 0.0},
        "run": given["run"] | {"save_every": 0, "samples_every": 1},  # all steps alike
        "callback": [Held],
    }
    rlframe.fit(algorithm, **given)
    assert len(Held.noted) == STEPS
    return Held.noted[-1] - Held.noted[WARM]


def test_a_step_leaves_nothing_behind(tmp_path: Any) -> None:
    assert growth(tmp_path, GRPO) <= 0


def test_what_a_step_leaves_behind_would_be_seen(tmp_path: Any) -> None:
    found = growth(tmp_path, Forgetful)
    Forgetful.seen.clear()
    assert found >= STEPS - 1 - WARM

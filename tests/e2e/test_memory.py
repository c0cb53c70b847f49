"""A run's memory does not grow with its steps; `benchmarks/memory.py` looks at 200 of them."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any, ClassVar

import torch

import rlframe
from rlframe.interfaces.loop import Callback
from rlframe.timeline import Span
from rlframe_algorithms.grpo import GRPO
from tests.e2e.small import make_model, make_questions, options

STEPS, WARM = 10, 4


class Held(Callback):
    """Objects by type, tensors among them, that Python's collector knows of after each step.

    By type, since other tests' threads in this process may free an object meanwhile. Spans of
    the timeline do not count (they wait to be written a few steps at a time), nor what is noted.
    """

    noted: ClassVar[list[Counter[type]]] = []

    def on_step_end(self, orchestrator: Any, metrics: Any) -> None:
        gc.collect()
        found = Counter(type(one) for one in gc.get_objects())
        del found[Span], found[Counter]
        self.noted.append(found)


class Forgetful(GRPO):
    """Keeps two tensors of every step."""

    seen: ClassVar[list[Any]] = []

    def policy_loss(self, out: Any, batch: Any) -> Any:
        self.seen += [out.logprobs.detach(), out.entropy.detach()]
        return super().policy_loss(out, batch)


def grown(folder: Any, algorithm: Any) -> set[type]:
    """Types of which every step after the first few leaves an object behind, or more."""
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
    more = Held.noted[-1] - Held.noted[WARM]
    return {kind for kind, count in more.items() if count >= STEPS - 1 - WARM}


def test_a_step_leaves_nothing_behind(tmp_path: Any) -> None:
    assert grown(tmp_path, GRPO) == set()


def test_what_a_step_leaves_behind_would_be_seen(tmp_path: Any) -> None:
    found = grown(tmp_path, Forgetful)
    Forgetful.seen.clear()
    assert torch.Tensor in found

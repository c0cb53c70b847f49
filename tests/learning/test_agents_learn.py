"""The agents of the recipes learn, from reward alone: ``make test-learning``, some minutes.

The figures are those of held-out questions, answered greedily. Bounds are below what was measured
(docs/agents.md) by more than seeds differ.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import rlframe
from rlframe_templates.envs.calculator import make_model

RECIPES = Path(__file__).parents[2] / "templates/rlframe_templates/recipes"
LIMIT_S = 3000
"""Many times what a recipe takes on two quiet cores."""

pytestmark = [
    pytest.mark.skipif(
        "RLFRAME_LEARN" not in os.environ, reason="make test-learning runs it: some minutes"
    ),
    pytest.mark.timeout(LIMIT_S),
]


def learned(folder, recipe, steps, **more):
    """What a run of a recipe says of its beginning and its end; printed, to be written down."""
    run = {"dir": str(folder), "name": recipe}
    config = RECIPES / f"{recipe}.yaml"
    done = rlframe.fit(config=config, run=run, logger=["jsonl"], steps=steps, **more)
    lines = (Path(done.run_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [line for line in map(json.loads, lines) if "val/reward/mean" in line]
    names = ("val/reward/mean", "val/env/turns", "val/env/tool_calls")
    first, last = ({name: line[name] for name in names} for line in (found[0], found[-1]))
    print(f"{recipe}: {json.dumps(first)} before, {json.dumps(last)} after {steps} steps")
    return first, last


def test_a_number_is_guessed_by_halving_the_range(tmp_path):
    first, last = learned(tmp_path, "tiny_guess", 40)
    assert first["val/reward/mean"] <= 0.3
    assert last["val/reward/mean"] >= 0.55


def test_a_calculator_is_used_for_what_the_model_cannot_do(tmp_path):
    model = make_model(tmp_path / "model")
    first, last = learned(tmp_path, "tiny_calculator", 24, model=str(model))
    assert first["val/reward/mean"] <= 0.1
    assert last["val/reward/mean"] >= 0.8
    assert last["val/env/tool_calls"] >= 0.9

"""Runs of fsdp on several ranks, held against a plain float64 model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro
from rlframe.testing.strategy_reference import Reference
from rlframe.testing.strategy_runs import (
    CLIP,
    COMPUTES,
    LR,
    SEEDS,
    TEMPERATURE,
    Job,
    Seen,
    run_job,
    summed_loss,
    whole_weights,
)
from rlframe_strategies.fsdp import FSDPStrategy


def run(world: int, path: Path, options: dict[str, Any], **changes: Any) -> list[Seen]:
    seen: list[Seen] = run_ranks(run_job, world, Job(FSDPStrategy, path, options, **changes))
    return seen


def check_steps(seen: list[Seen], path: Path, kind: Any) -> None:
    """Outputs, norms of two steps and the weights after them; copies bit-equal."""
    reference = Reference(path, kind, TEMPERATURE)
    first = reference.outputs(random_micro(seed=SEEDS[0]))
    for rank in seen:
        for name in COMPUTES[kind]:
            wanted = first.get(name).detach().float()
            torch.testing.assert_close(rank.before[name], wanted, rtol=1e-5, atol=1e-5)
    steps = [reference.step([random_micro(seed=seed)], summed_loss, LR, CLIP) for seed in SEEDS]
    for rank in seen:
        assert rank.norms == pytest.approx([step.norm for step in steps], rel=1e-5)
    for name, tensor in whole_weights(seen).items():
        wanted = steps[-1].weights[name].float()
        torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-5, msg=name)

"""One optimiser step of a role over leaves in place of a model, and whether two steps are alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from rlframe.algorithm import Algorithm, Output, RoleSpec
from rlframe.batching.batch import Batch
from rlframe.batching.plan import MiniBatchPlan, plan_batch
from rlframe.testing.simulated_update import Rows, simulate_step

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["FIXED_LENGTH", "StepResult", "one_step", "same_step"]

FIXED_LENGTH = 8.0
"""Constant of the fixed-length reduction, tokens."""


@dataclass(frozen=True)
class StepResult:
    """A step's loss, figures, and gradients of every output by batch row."""

    loss: float
    figures: Mapping[str, float]
    gradients: Mapping[str, Tensor]


def one_step(
    algorithm: Algorithm,
    role: RoleSpec,
    batch: Batch,
    leaves: Mapping[str, Tensor],
    *,
    budget: int = 1000,
    ranks: int = 1,
    dirty: bool = False,
) -> StepResult:
    """One optimiser step over the whole batch, split as asked."""
    held = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}

    def outputs(rows: Rows, micro: TensorDict) -> Output:
        index, width = torch.from_numpy(rows), micro["loss_mask"].shape[1]
        taken = {name: leaf[index] for name, leaf in held.items()}
        return Output(**{n: v if v.dim() == 1 else v[:, :width] for n, v in taken.items()})

    loss, figures = simulate_step(
        algorithm,
        role.name,
        batch,
        _plan(algorithm, batch, budget, ranks),
        outputs,
        fixed_length=FIXED_LENGTH,
        dirty=dirty,
    )
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    zero = {name: torch.zeros_like(leaf) for name, leaf in held.items()}
    gradients = {n: zero[n] if leaf.grad is None else leaf.grad for n, leaf in held.items()}
    return StepResult(loss.item(), figures, gradients)


def _plan(algorithm: Algorithm, batch: Batch, budget: int, ranks: int) -> MiniBatchPlan:
    plan = plan_batch(
        batch,
        epochs=1,
        minibatch_prompts=0,
        budget=budget,
        ranks=ranks,
        atom_ids=algorithm.atoms(batch),
    )
    return plan.minibatches[0]


def same_step(got: StepResult, wanted: StepResult, rel: float = 1e-9) -> None:
    """Assert that loss, figures and gradients are equal within ``rel``."""
    assert got.loss == pytest.approx(wanted.loss, rel=rel, abs=rel)
    assert got.figures == pytest.approx(wanted.figures, rel=rel, abs=rel)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=rel, atol=rel)

"""One optimiser step of a role without a model: the core's own path, ranks played one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.algorithm import Algorithm, Output
from rlframe.batching.batch import Batch
from rlframe.batching.columns import Schema
from rlframe.batching.plan import MiniBatchPlan
from rlframe.learning.loss import Denominators, add_loss_mask, count_denominators, loss_share

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["micro_of", "poison", "simulate_step", "union_of_masks"]

Rows = NDArray[np.int64]
Outputs = Callable[[Rows, "TensorDict"], Output]
"""From batch rows and their padded micro-batch to what the role's forward pass computes."""


def simulate_step(
    algorithm: Algorithm,
    role: str,
    batch: Batch,
    step: MiniBatchPlan,
    outputs: Outputs,
    *,
    fixed_length: float,
    dirty: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """The loss () of a mini-batch, differentiable, and its figures.

    ``step.micros[rank]`` are the micro-batches of each rank; empty ones run too. ``dirty`` writes
    NaN into every float slot outside the algorithm's masks, of columns and outputs alike.
    """
    denominators = _count(algorithm, batch, step)
    extra = _minibatch_columns(algorithm, batch, step, outputs)
    loss = torch.zeros(())
    figures: dict[str, float] = {}
    for rows in (rows for rank in step.micros for rows in rank):
        micro = micro_of(batch, rows)
        for name, column in extra.items():
            micro[name] = column[torch.from_numpy(rows)][:, : micro["loss_mask"].shape[1]]
        out = outputs(rows, micro)
        if dirty:
            out, micro = poison(out, micro, algorithm, batch.schema)
        share, more = loss_share(
            algorithm,
            role,
            out,
            micro,
            denominators,
            fixed_length=fixed_length,
            schema=batch.schema,
        )
        loss = loss + share
        for name, value in more.items():
            figures[name] = figures.get(name, 0.0) + float(value)
    return loss, figures


def micro_of(batch: Batch, rows: Rows) -> TensorDict:
    """Rows as a padded micro-batch with their final ``loss_mask``."""
    return add_loss_mask(batch.take(rows).to_tensordict())


def union_of_masks(algorithm: Algorithm, micro: TensorDict) -> Tensor:
    """Slots that some term may count: (b, R) bool."""
    return torch.stack([micro[name] for name in algorithm.masks]).any(0)


def poison(
    out: Output, micro: TensorDict, algorithm: Algorithm, schema: Schema
) -> tuple[Output, TensorDict]:
    """Outputs and columns with NaN in every float slot over response tokens that cannot count."""
    outside = ~union_of_masks(algorithm, micro)

    def spoil(values: Tensor) -> Tensor:
        if not values.is_floating_point() or values.shape[:2] != outside.shape:
            return values
        slots = outside.reshape(*outside.shape, *[1] * (values.dim() - 2))
        return values.masked_fill(slots, float("nan"))

    found = {f.name: out.get(f.name) for f in fields(Output)}
    spoiled = micro.copy()
    for name in micro.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        if isinstance(micro[name], Tensor) and (name not in schema or schema[name].axis == "R"):
            spoiled[name] = spoil(micro[name])
    return Output(**{n: spoil(v) for n, v in found.items() if v is not None}), spoiled


def _count(algorithm: Algorithm, batch: Batch, step: MiniBatchPlan) -> Denominators:
    """Counts of all ranks: each counts its own, the sum is what an all-reduce would give."""
    atoms = algorithm.atoms(batch)
    mine: list[Tensor] = []
    total: list[Tensor] = []

    def reduce(vector: Tensor) -> Tensor:
        mine.append(vector)
        return total[0] if total else vector

    def count(rows: Rows) -> Denominators:
        micro = micro_of(batch, rows)
        distinct = None if atoms is None else len(np.unique(atoms[rows]))
        masks = {name: micro[name] for name in algorithm.masks}
        return count_denominators(masks, algorithm.masks, reduce, rows=len(rows), atoms=distinct)

    per_rank = [np.concatenate([np.zeros(0, np.int64), *micros]) for micros in step.micros]
    for rows in per_rank:
        count(rows)
    total.append(torch.stack(mine).sum(0))
    return count(per_rank[0])


def _minibatch_columns(
    algorithm: Algorithm, batch: Batch, step: MiniBatchPlan, outputs: Outputs
) -> dict[str, Tensor]:
    """Columns (B, R) of ``Algorithm.minibatch``, by batch row; 0 in rows outside the mini-batch."""
    if type(algorithm).minibatch is Algorithm.minibatch:
        return {}
    rows = np.sort(step.rows)
    micro = micro_of(batch, rows)
    with torch.no_grad():
        made = algorithm.minibatch(outputs(rows, micro), micro)
    columns = {}
    for name, values in made.items():
        columns[name] = values.new_zeros(len(batch), *values.shape[1:])
        columns[name][torch.from_numpy(rows)] = values
    return columns

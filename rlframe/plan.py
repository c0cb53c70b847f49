"""The update plan: which rows make up which optimiser step and micro-batch, on every rank.

Mini-batches are counted in prompts and keep groups whole. Micro-batches hold a budget of tokens and
are cut from length-sorted rows, atoms (pairs, whole groups) intact. Every rank gets equally many,
so that no collective hangs; an empty one stands where a rank has no rows left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import BatchError

__all__ = ["MiniBatchPlan", "UpdatePlan", "infer_plan", "plan_update"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class MiniBatchPlan:
    """One optimiser step: ``micros[rank][i]`` are batch rows; equally many per rank."""

    micros: tuple[tuple[Rows, ...], ...]

    @property
    def rows(self) -> Rows:
        """All rows of the step."""
        parts = [micro for rank in self.micros for micro in rank]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class UpdatePlan:
    """Every optimiser step of one ``update`` call, epochs unrolled."""

    minibatches: tuple[MiniBatchPlan, ...]

    def parts(self, ranks: int) -> list[tuple[Rows, UpdatePlan]]:
        """Per rank the batch rows that it needs, ascending, and its own plan over just those rows.

        Raises BatchError where the plan was made for another number of ranks.
        """
        return [self._of_rank(rank, ranks) for rank in range(ranks)]

    def _of_rank(self, rank: int, ranks: int) -> tuple[Rows, UpdatePlan]:
        mine: list[tuple[Rows, ...]] = []
        for step in self.minibatches:
            if len(step.micros) != ranks:
                raise BatchError(
                    f"an update plan for {len(step.micros)} ranks was given to {ranks}: make it "
                    "with ranks=group.mesh.dp"
                )
            mine.append(step.micros[rank])
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(m for s in mine for m in s)]))
        local = [tuple(np.searchsorted(rows, micro) for micro in step) for step in mine]
        return rows, UpdatePlan(tuple(MiniBatchPlan((step,)) for step in local))


def _atoms(atom_ids: Rows, rows: Rows) -> list[Rows]:
    """Rows that stay together, in order of first appearance."""
    ids = atom_ids[rows]
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(rows[order], np.cumsum(np.bincount(inverse))[:-1])
    return [parts[i] for i in np.argsort(first, kind="stable")]


def _deal(atoms: Sequence[Rows], costs: Rows, ranks: int) -> list[list[Rows]]:
    """Atoms to ranks, the longest first to the least loaded one."""
    dealt: list[list[Rows]] = [[] for _ in range(ranks)]
    load = np.zeros(ranks)
    for i in sorted(range(len(atoms)), key=lambda i: (-int(costs[atoms[i]].sum()), i)):
        rank = int(load.argmin())
        dealt[rank].append(atoms[i])
        load[rank] += costs[atoms[i]].sum()
    return dealt


def _cut(atoms: Sequence[Rows], lengths: Rows, budget: int) -> list[Rows]:
    """Length-sorted atoms into micro-batches of at most ``budget`` tokens (or one atom)."""
    micros: list[Rows] = []
    part: list[Rows] = []
    used = 0
    for atom in sorted(atoms, key=lambda a: -int(lengths[a].max())):
        tokens = int(lengths[atom].sum())
        if part and used + tokens > budget:
            micros.append(np.concatenate(part))
            part, used = [], 0
        part.append(atom)
        used += tokens
    if part:
        micros.append(np.concatenate(part))
    return micros


def _minibatch(rows: Rows, lengths: Rows, atom_ids: Rows, ranks: int, budget: int) -> MiniBatchPlan:
    dealt = _deal(_atoms(atom_ids, rows), lengths, ranks)
    cut = [_cut(atoms, lengths, budget) for atoms in dealt]
    most = max((len(micros) for micros in cut), default=0)
    empty = np.zeros(0, np.int64)
    return MiniBatchPlan(tuple(tuple(m + [empty] * (most - len(m))) for m in cut))


def plan_update(
    lengths: Rows,
    group_ids: Rows,
    *,
    epochs: int,
    minibatch_prompts: int,
    budget: int,
    ranks: int = 1,
    atom_ids: Rows | None = None,
    seed: int = 0,
) -> UpdatePlan:
    """Plan one call of ``update``.

    Shapes: ``lengths`` (tokens), ``group_ids``, ``atom_ids`` all (B,). ``budget`` is in tokens a
    micro-batch and rank. The order of groups is shuffled per epoch unless one step takes them all.
    """
    if not len(lengths):
        return UpdatePlan(())
    groups = _atoms(group_ids, np.arange(len(lengths), dtype=np.int64))
    per_step = minibatch_prompts or len(groups)
    atoms = np.arange(len(lengths), dtype=np.int64) if atom_ids is None else atom_ids
    steps = []
    for epoch in range(epochs):
        order = np.arange(len(groups))
        if per_step < len(groups):
            order = np.random.default_rng((seed, epoch)).permutation(len(groups))
        for start in range(0, len(groups), per_step):
            rows = np.concatenate([groups[i] for i in order[start : start + per_step]])
            steps.append(_minibatch(rows, lengths, atoms, ranks, budget))
    return UpdatePlan(tuple(steps))


def infer_plan(lengths: Rows, budget: int, ranks: int = 1) -> MiniBatchPlan:
    """Micro-batches for a pass without gradient, rows dealt to ranks by tokens."""
    rows = np.arange(len(lengths), dtype=np.int64)
    return _minibatch(rows, lengths, rows, ranks, budget)

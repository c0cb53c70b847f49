"""The update plan: which rows make up which optimiser step and micro-batch, on every rank.

Mini-batches are counted in prompts and keep groups whole. Their atoms (rows, pairs, whole groups)
are dealt to ranks by operations. Micro-batches hold a budget of tokens and are cut from
length-sorted rows, atoms intact. Every rank gets equally many, so that no collective hangs; an
empty one stands where a rank has too few atoms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.balance import WIDTH, deal, imbalance, sequence_costs
from rlframe.batching.packed import ragged_index
from rlframe.errors import BatchError

if TYPE_CHECKING:
    from rlframe.batching.batch import Batch

__all__ = [
    "MiniBatchPlan",
    "UpdatePlan",
    "infer_plan",
    "plan_batch",
    "plan_update",
    "sequence_lengths",
]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class MiniBatchPlan:
    """One optimiser step: ``micros[rank][i]`` are batch rows; equally many per rank.

    ``imbalance``: how much longer the busiest rank works than the mean one, by operations.
    """

    micros: tuple[tuple[Rows, ...], ...]
    imbalance: float = 0.0

    @property
    def rows(self) -> Rows:
        """All rows of the step."""
        parts = [micro for rank in self.micros for micro in rank]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class UpdatePlan:
    """Every optimiser step of one ``update`` call, epochs unrolled."""

    minibatches: tuple[MiniBatchPlan, ...]

    @property
    def imbalance(self) -> float:
        """The mean of the steps' imbalance."""
        return float(np.mean([step.imbalance for step in self.minibatches] or [0.0]))

    def parts(self, ranks: int) -> list[tuple[Rows, UpdatePlan]]:
        """Per rank the batch rows that it needs, ascending, and its own plan over just those rows.

        Raises BatchError where the plan was made for another number of ranks.
        """
        for step in self.minibatches:
            if len(step.micros) != ranks:
                raise BatchError(
                    f"an update plan for {len(step.micros)} ranks was given to {ranks}: make it "
                    "with ranks=group.mesh.dp"
                )
        return [self._of_rank(rank) for rank in range(ranks)]

    def _of_rank(self, rank: int) -> tuple[Rows, UpdatePlan]:
        mine = [step.micros[rank] for step in self.minibatches]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(m for s in mine for m in s)]))
        local = [tuple(np.searchsorted(rows, micro) for micro in step) for step in mine]
        steps = zip(local, self.minibatches, strict=True)
        return rows, UpdatePlan(tuple(MiniBatchPlan((m,), step.imbalance) for m, step in steps))


def sequence_lengths(batch: Batch) -> Rows:
    """Tokens (B,) of each row, prompt and response together."""
    return batch.lengths("prompt_ids") + batch.lengths("response_ids")


def plan_batch(
    batch: Batch,
    *,
    budget: int,
    epochs: int = 1,
    minibatch_prompts: int = 0,
    ranks: int = 1,
    atom_ids: Rows | None = None,
    seed: int = 0,
    width: int = WIDTH,
) -> UpdatePlan:
    """:func:`plan_update` of a batch's rows, by their lengths and groups."""
    return plan_update(
        sequence_lengths(batch),
        np.asarray(batch["group_ids"]),
        epochs=epochs,
        minibatch_prompts=minibatch_prompts,
        budget=budget,
        ranks=ranks,
        atom_ids=atom_ids,
        seed=seed,
        width=width,
    )


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
    width: int = WIDTH,
) -> UpdatePlan:
    """Plan one call of ``update``.

    Shapes: ``lengths`` (tokens), ``group_ids``, ``atom_ids`` all (B,). ``budget`` is in tokens a
    micro-batch and rank, ``width`` the model's hidden size. The order of groups is shuffled per
    epoch unless one step takes them all.
    """
    if not len(lengths):
        return UpdatePlan(())
    groups = _Atoms(group_ids, lengths)
    count = len(groups.sizes)
    per_step = minibatch_prompts or count
    atoms = np.arange(len(lengths), dtype=np.int64) if atom_ids is None else atom_ids
    costs = sequence_costs(lengths, width)
    steps = []
    for epoch in range(epochs):
        order = np.arange(count)
        if per_step < count:
            order = np.random.default_rng((seed, epoch)).permutation(count)
        for start in range(0, count, per_step):
            rows = groups.rows_of(order[start : start + per_step])
            steps.append(_minibatch(rows, lengths, costs, atoms, ranks, budget))
    return UpdatePlan(tuple(steps))


def infer_plan(lengths: Rows, budget: int, ranks: int = 1) -> MiniBatchPlan:
    """Micro-batches for a pass without gradient, rows dealt to ranks by operations."""
    rows = np.arange(len(lengths), dtype=np.int64)
    return _minibatch(rows, lengths, sequence_costs(lengths), rows, ranks, budget)


class _Atoms:
    """Rows that stay together, by their id, in order of first appearance.

    Per atom: ``sizes`` rows, ``tokens``, and the ``longest`` row; all (n,).
    """

    def __init__(self, ids: Rows, lengths: Rows) -> None:
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        self.of_row = rank[inverse]
        self.sizes = np.bincount(self.of_row, minlength=len(first))
        self._order = np.argsort(self.of_row, kind="stable")
        self._starts = np.cumsum(self.sizes) - self.sizes
        self.tokens = np.bincount(self.of_row, weights=lengths).astype(np.int64)
        self.longest = np.zeros(len(first), np.int64)
        np.maximum.at(self.longest, self.of_row, lengths)

    def rows_of(self, atoms: Rows) -> Rows:
        """Positions of the rows of these atoms, one atom after the other."""
        return self._order[ragged_index(self._starts[atoms], self.sizes[atoms])]


def _minibatch(
    rows: Rows, lengths: Rows, costs: NDArray[np.float64], atom_ids: Rows, ranks: int, budget: int
) -> MiniBatchPlan:
    """Deal the atoms of ``rows``, then cut each rank's, the longest first, into micro-batches."""
    atoms = _Atoms(atom_ids[rows], lengths[rows])
    summed = np.bincount(atoms.of_row, weights=costs[rows], minlength=len(atoms.sizes))
    dealt = deal(np.asarray(summed, np.float64), ranks)
    order = np.lexsort((np.arange(len(dealt)), -atoms.tokens, -atoms.longest, dealt))
    ends = np.cumsum(np.bincount(dealt, minlength=ranks))
    mine = np.split(order, ends[:-1])
    cuts = [_cuts(atoms.tokens[part], budget) for part in mine]
    most = max(len(cut) for cut in cuts)
    micros = []
    for part, cut in zip(mine, cuts, strict=True):
        if len(cut) < most:
            cut = _even_cuts(atoms.tokens[part], budget, most)
        pieces = np.split(part, cut[1:]) if len(part) else []
        filled = [rows[atoms.rows_of(piece)] for piece in pieces]
        micros.append((*filled, *[np.zeros(0, np.int64)] * (most - len(filled))))
    return MiniBatchPlan(tuple(micros), imbalance(np.asarray(summed, np.float64), dealt, ranks))


def _cuts(tokens: Rows, budget: int) -> list[int]:
    """Where micro-batches of at most ``budget`` tokens (or one atom) start."""
    total = np.cumsum(tokens)
    starts: list[int] = []
    at, used = 0, 0
    while at < len(tokens):
        starts.append(at)
        at = max(at + 1, int(np.searchsorted(total, used + budget, side="right")))
        used = int(total[at - 1])
    return starts


def _even_cuts(tokens: Rows, budget: int, count: int) -> list[int]:
    """Where ``count`` micro-batches (or one an atom, where those are fewer) start.

    They are cut by the least budget that needs no more, and those of most atoms halved where that
    needs fewer, as ``budget`` does.
    """
    if len(tokens) <= count:
        return list(range(len(tokens)))
    low, high = 0, budget
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cuts(tokens, middle)) <= count else (middle + 1, high)
    starts = _cuts(tokens, low)
    while len(starts) < count:
        sizes = np.diff([*starts, len(tokens)])
        widest = int(np.argmax(sizes))
        starts.insert(widest + 1, starts[widest] + int(sizes[widest]) // 2)
    return starts

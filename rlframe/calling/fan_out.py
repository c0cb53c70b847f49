"""Carrying a protocol out: what each rank of a group is called with, and what comes back.

Pure: nothing is moved here. A chunk of a batch is an edited index; its rows are pulled by the rank
that reads them, so that no payload passes the controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.balance import WIDTH, deal, sequence_costs
from rlframe.batching.batch import Batch
from rlframe.batching.plan import UpdatePlan
from rlframe.calling.protocol import Mesh, Protocol
from rlframe.errors import BatchError

__all__ = ["Share", "collect", "distribute"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """What one rank is called with; ranks of one chunk hold the same object.

    ``rows``: the rows (n,) of the caller's batch that the chunk consists of; None where no batch
    was cut.
    """

    args: tuple[Any, ...]
    rows: Rows | None = None


def distribute(
    rule: Protocol, mesh: Mesh, args: tuple[Any, ...], *, width: int = WIDTH
) -> list[Share | None]:
    """One share a rank of the mesh; None for a rank that is not called.

    Where rows are cut, every ``Batch`` among ``args`` is cut alike, an ``UpdatePlan`` decides the
    rows and is cut with them, and other arguments go to all. Rows are dealt so that the ranks'
    operations on a model of hidden size ``width`` are even; a chunk may be empty. ``args`` are left
    as they are.
    Raises BatchError where there is nothing to cut, or where arguments do not fit the mesh.
    """
    count = rule.chunks(mesh)
    if count == 0:
        shares = [Share(args)]
    elif rule.cut == "values":
        shares = _values(rule, count, args)
    else:
        shares = _cut(rule, count, args, width)
    chunks = [rule.chunk_of(mesh, rank) for rank in range(mesh.size)]
    return [None if chunk is None else shares[chunk] for chunk in chunks]


def collect(
    rule: Protocol, mesh: Mesh, shares: Sequence[Share | None], results: Mapping[int, Any]
) -> Any:
    """What a call returns, from the results of the collected ranks by rank.

    "concat" gives ``[(result, batch rows), ...]`` for ``Batch.add_handles``, "list" one result a
    collected rank, "first" the only one, "mean" the mean of numbers (or of each number of a
    mapping).
    """
    ranks = rule.collected(mesh)
    if rule.combine == "concat":
        return [(results[rank], _rows_of(shares[rank])) for rank in ranks]
    if rule.combine == "list":
        return [results[rank] for rank in ranks]
    if rule.combine == "mean":
        return _mean([results[rank] for rank in ranks])
    return results[ranks[0]]


def _rows_of(share: Share | None) -> Rows:
    assert share is not None, "a collected rank was not called"
    assert share.rows is not None, "columns came back from a call without a batch"
    return share.rows


def _mean(found: Sequence[Any]) -> Any:
    if isinstance(found[0], Mapping):
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    return float(np.mean(found))


def _values(rule: Protocol, count: int, args: tuple[Any, ...]) -> list[Share]:
    for number, values in enumerate(args):
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
            size = len(values) if isinstance(values, Sequence) else type(values).__name__
            raise BatchError(
                f"{rule.name} takes one value a rank: argument {number + 1} is {size} for {count} "
                "ranks; give a list with one value for each"
            )
    return [Share(tuple(values[chunk] for values in args)) for chunk in range(count)]


def _cut(rule: Protocol, count: int, args: tuple[Any, ...], width: int) -> list[Share]:
    batches = [arg for arg in args if isinstance(arg, Batch)]
    if not batches or len({len(batch) for batch in batches}) > 1:
        found = ", ".join(type(arg).__name__ for arg in args) or "no argument"
        raise BatchError(f"{rule.name} cuts a batch into {count} chunks, but was given {found}")
    plans = [arg for arg in args if isinstance(arg, UpdatePlan)]
    if plans:
        parts = plans[0].parts(count)
        rows, mine = [rows for rows, _ in parts], [plan for _, plan in parts]
    else:
        rows, mine = _dealt(rule, count, batches[0], width), []
    return [
        Share(tuple(_part(arg, rows[c], mine[c] if mine else None) for arg in args), rows[c])
        for c in range(count)
    ]


def _part(arg: Any, rows: Rows, plan: UpdatePlan | None) -> Any:
    if isinstance(arg, UpdatePlan):
        return plan
    if not isinstance(arg, Batch):
        return arg
    if len(rows) == len(arg) and np.array_equal(rows, np.arange(len(arg))):
        return arg
    return arg.take(rows).narrow()


def _dealt(rule: Protocol, count: int, batch: Batch, width: int) -> list[Rows]:
    """Rows of each chunk, ascending."""
    if count == 1:
        return [np.arange(len(batch), dtype=np.int64)]
    costs = _costs(batch, width)
    if rule.together is None and costs.min(initial=np.inf) == costs.max(initial=0.0):
        # Neighbours, which can be read without a copy.
        return [rows.astype(np.int64) for rows in np.array_split(np.arange(len(batch)), count)]
    if rule.together is None:
        return _by_chunk(deal(costs, count), count)
    ids = np.asarray(batch[rule.together])
    _, unit = np.unique(ids, return_inverse=True)
    together = np.asarray(np.bincount(unit, weights=costs), np.float64)
    return _by_chunk(deal(together, count)[unit], count)


def _by_chunk(chunk: Rows, count: int) -> list[Rows]:
    order = np.argsort(chunk, kind="stable")
    return np.split(order, np.cumsum(np.bincount(chunk, minlength=count))[:-1])


def _costs(batch: Batch, width: int) -> NDArray[np.float64]:
    ragged = [name for name in ("prompt_ids", "response_ids") if name in batch]
    if not ragged:
        return np.ones(len(batch))
    lengths = np.sum([batch.lengths(name) for name in ragged], axis=0)
    return sequence_costs(np.asarray(lengths, np.int64), width)

"""Advantages on the policy's ranks: each group whole on one, sums over all, some with no rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from torch import Tensor

from rlframe.algorithm import Algorithm
from rlframe.batching.batch import Batch
from rlframe.batching.pack_columns import column_of
from rlframe.calling.fan_out import Share, collect, distribute
from rlframe.calling.protocol import THREE_D_PROTO, Mesh
from rlframe.learning.advantages import checked_columns
from rlframe.testing.algorithm_cases import Case

__all__ = ["AdvantageChecks", "advantages_on_ranks"]

_WAIT_S = 60.0
"""How long a rank waits for the others' part of a sum, seconds."""


class AdvantageChecks:
    """A part of ``AlgorithmKit``."""

    def algorithm(self) -> Algorithm:
        """See ``AlgorithmKit``."""
        raise NotImplementedError

    def _case(self, algorithm: Algorithm) -> Case:
        raise NotImplementedError

    @pytest.mark.parametrize("ranks", [2, 3, 9])
    def test_advantages_are_the_same_on_any_number_of_ranks(self, ranks: int) -> None:
        """Where they are computed on the ranks: what a batch needs whole goes by ``batch.sum``.

        With more ranks than groups some have no rows; they take part in the sums.
        """
        algorithm = self.algorithm()
        batch = self._case(algorithm).scored
        if all(column_of(batch.schema, name).axis is None for name in algorithm.reads):
            pytest.skip("advantages from per-row columns are computed on the controller")
        got = advantages_on_ranks(algorithm, batch, ranks)
        for name, wanted in checked_columns(algorithm, batch).items():
            values = got.packed(name).values
            assert np.allclose(values, wanted.values, rtol=1e-5, atol=1e-6, equal_nan=True), name


def advantages_on_ranks(algorithm: Algorithm, batch: Batch, ranks: int) -> Batch:
    """The batch with advantages, one thread a rank."""
    rule, mesh, total = THREE_D_PROTO.keeping("group_ids"), Mesh(dp=ranks), _Total(ranks)
    shares = distribute(rule, mesh, (batch,))

    def work(rank: int, share: Share) -> object:
        chunk: Batch = share.args[0]
        chunk.reduce = total.of(rank)
        return batch.transfer.put(checked_columns(algorithm, chunk))

    with ThreadPoolExecutor(ranks) as pool:
        called = {r: pool.submit(work, r, s) for r, s in enumerate(shares) if s is not None}
        results = {rank: future.result() for rank, future in called.items()}
    return batch.add_handles(collect(rule, mesh, shares, results))


class _Total:
    """An all-reduce among threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=_WAIT_S)
        self._parts: dict[int, Tensor] = {}

    def of(self, rank: int) -> Callable[[Tensor], Tensor]:
        """The sum as a rank calls it."""

        def reduce(values: Tensor) -> Tensor:
            self._parts[rank] = values
            self._barrier.wait()
            parts = [self._parts[r] for r in sorted(self._parts)]
            self._barrier.wait()
            out = parts[0].clone()
            for part in parts[1:]:
                out = out + part
            return out

        return reduce

"""The kit of methods that learn from preference pairs: subclass :class:`PairKit`, give a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rlframe.testing.algorithm_cases import RowCase, leaves_of
from rlframe.testing.algorithm_kit import AlgorithmKit, one_step
from rlframe.testing.simulated_update import micro_of

__all__ = ["PAIRS", "PairKit"]

PAIRS = (
    RowCase(7, "111", 0.0),
    RowCase(3, "1", 0.0),
    RowCase(7, "11", 0.0),
    RowCase(3, "11111", 0.0),
    RowCase(9, "1111", 0.0),
    RowCase(5, "101", 0.0),
    RowCase(9, "", 0.0),
    RowCase(5, "1", 0.0),
    RowCase(4, "11", 0.0),
    RowCase(4, "11", 0.0),
)
"""Five pairs, not side by side, ragged, one of them with an empty response."""


class PairKit(AlgorithmKit):
    """Conformance of a method whose data has the column ``chosen`` and whose atoms are pairs."""

    rows: ClassVar[Sequence[RowCase]] = PAIRS
    rises: ClassVar[Mapping[str, float]] = {"logprobs": 1.0}
    """Outputs that descent raises at the better response of a pair and lowers at the worse: 1; or
    the other way round: -1."""

    def extra_columns(self, rows: Sequence[RowCase]) -> Mapping[str, Any]:
        """The better response of a pair is the one with the lower episode id."""
        first: dict[int, int] = {}
        for row in rows:
            number = row.episode or 0
            first[row.group] = min(number, first.get(row.group, number))
        return {"chosen": np.array([(row.episode or 0) == first[row.group] for row in rows])}

    def rows_of(self, masks: Sequence[str]) -> list[RowCase]:
        """Each mask twice: a pair."""
        return [RowCase(n, mask, 0.0) for n, mask in enumerate(masks) for _ in range(2)]

    def test_a_good_token_becomes_more_likely(self) -> None:
        """Descent raises what ``rises`` names at the better response, lowers it at the worse."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            chosen = torch.as_tensor(np.asarray(case.batch["chosen"]))
            inside = micro_of(case.batch, np.arange(len(case.batch)))["loss_mask"]
            gradients = one_step(algorithm, role, case.batch, leaves).gradients
            for name, way in self.rises.items():
                signs = way * (2 * chosen.double() - 1)
                slope = gradients[name]
                if slope.dim() > 1:
                    signs = torch.where(inside, signs[:, None], 0.0)
                assert torch.equal(slope.sign(), -signs)

    @pytest.mark.parametrize("masks", [("1", "1", "1"), ("", "", ""), ("000", "", "0"), ("1", "")])
    def test_one_token_and_empty_responses(self, masks: tuple[str, ...]) -> None:
        """Finite loss and gradient; without a counted token none per token."""
        for algorithm, role, case in self._cases(self.rows_of(masks)):
            got = one_step(algorithm, role, case.batch, leaves_of(role, case), budget=3, ranks=2)
            assert np.isfinite(got.loss)
            assert all(torch.isfinite(g).all() for g in got.gradients.values())
            if not any("1" in mask for mask in masks):
                per_token = [g for name, g in got.gradients.items() if name != "scores"]
                assert all((g == 0).all() for g in per_token)

    def test_a_pair_counts_once_however_long(self) -> None:
        """The loss of all pairs is the mean of the losses of each pair alone."""
        for algorithm, role, whole in self._cases():
            leaves, losses = leaves_of(role, whole), []
            for group in dict.fromkeys(row.group for row in whole.rows):
                where = [i for i, row in enumerate(whole.rows) if row.group == group]
                mine = {name: leaf[where] for name, leaf in leaves.items()}
                losses.append(one_step(algorithm, role, whole.batch.take(where), mine).loss)
            together = one_step(algorithm, role, whole.batch, leaves).loss
            assert together == pytest.approx(float(np.mean(losses)), rel=1e-6)

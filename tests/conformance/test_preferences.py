"""Cases of methods on pairs that the registered names' own classes do not have."""

from __future__ import annotations

from rlframe.testing.algorithm_cases import Case
from tests.conformance.preference_references import RewardModelReference, UnsafeBoth


class TestUnsafeBoth(UnsafeBoth):
    name = "cost-model"


class TestMargin(RewardModelReference):
    """A margin from the data is taken off the difference of scores."""

    name = "rm"
    options = {"margin_key": "margin"}  # noqa: RUF012

    def extra_columns(self, rows):
        import numpy as np

        margins = np.array([0.1 * row.group for row in rows], np.float32)
        return {**super().extra_columns(rows), "margin": margins}

    def reference_loss(self, role, columns, outputs):
        half = columns["margin"].double() / 2
        sign = 2 * columns["chosen"].double() - 1
        shifted = {"scores": outputs["scores"] - sign * half}
        return super().reference_loss(role, columns, shifted)

    def test_learns_the_toy_task(self):
        """The toy task's rows have no margin."""

    def test_state_survives_a_snapshot(self):
        """Nor here."""

    def test_the_margin_is_in_the_batch(self):
        case: Case = self._case(self.algorithm())
        assert case.batch["margin"].tolist()[:2] == [0.699999988079071, 0.30000001192092896]

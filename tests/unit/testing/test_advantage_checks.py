"""The kit notices a method that takes its own rank's rows for the whole batch."""

from __future__ import annotations

import pytest

from rlframe.testing.algorithm_kit import AlgorithmKit
from rlframe_algorithms.grpo import GRPO

CHECK = "test_advantages_are_the_same_on_any_number_of_ranks"


class Centred(GRPO):
    """Rewards less their mean over the batch, over response tokens."""

    reads = ("rewards", "response_mask")

    def mean(self, batch):
        rows = batch["response_mask"].any(1) if len(batch) else batch["rewards"].bool()
        return batch.sum(batch["rewards"], rows) / batch.sum(rows.float())

    def advantages(self, batch):
        return {"advantages": batch["rewards"] - self.mean(batch).float()}


class Alone(Centred):
    def mean(self, batch):
        return batch["rewards"].double().mean()


def kit(method):
    class Kit(AlgorithmKit):
        def algorithm(self):
            return method(GRPO.Config())

    return Kit()


@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_sums_over_the_batch_pass_and_means_of_a_rank_do_not(ranks):
    getattr(kit(Centred), CHECK)(ranks)
    with pytest.raises(AssertionError, match="advantages"):
        getattr(kit(Alone), CHECK)(ranks)

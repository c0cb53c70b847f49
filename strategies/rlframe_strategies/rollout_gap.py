"""How far the trainer's probabilities are from the sampler's on the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from rlframe.algorithm import Term
from rlframe.learning.loss import Denominators, reduce_terms
from rlframe.ops.ratios import log_ratio

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

__all__ = ["RolloutGap"]


class RolloutGap:
    """Adds up, over the micro-batches of one optimiser step, with ``w = pi_old / pi_rollout``:

    - ``rollout_logprob_gap``, ``rollout_logprob_gap_max``: mean and largest |log w|, nats
    - ``rollout_kl``: KL(pi_rollout || pi_old) from k3, which is unbiased and never negative, nats
    - ``rollout_ess``: effective sample size of the weights, as a share of the tokens, (0, 1]
    """  # noqa: D415

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._largest = torch.zeros((), dtype=torch.float64)

    def add(self, trainer: Tensor, micro: TensorDict, denominators: Denominators) -> None:
        """``trainer`` (b, R) nats, against ``rollout_logprobs`` of a micro-batch."""
        log_w = log_ratio(trainer.detach(), micro["rollout_logprobs"])
        terms = {
            "gap": Term(log_w.abs()),
            "kl": Term(torch.expm1(log_w) - log_w),
            "w": Term(log_w.exp()),
            "w2": Term((2 * log_w).exp()),
        }
        for name, value in reduce_terms(terms, micro, denominators)[1].items():
            self._sums[name] = self._sums.get(name, 0) + value.cpu()
        inside = log_w.abs()[micro["loss_mask"]]
        if len(inside):
            self._largest = torch.maximum(self._largest, inside.max().double().cpu())

    def figures(self, reduce: Callable[..., Tensor]) -> dict[str, float]:
        """Over all micro-batches and ranks; every rank calls it."""
        names = ("gap", "kl", "w", "w2")
        zero = torch.zeros((), dtype=torch.float64)
        mine = torch.stack([self._sums.get(name, zero) for name in names])
        gap, kl, w, w2 = reduce(mine).tolist()
        return {
            "rollout_logprob_gap": gap,
            "rollout_logprob_gap_max": float(reduce(self._largest, "max")),
            "rollout_kl": kl,
            "rollout_ess": w * w / w2 if w2 else 0.0,
        }

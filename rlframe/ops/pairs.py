"""Losses of preference pairs: one better and one worse response to the same prompt.

**b** rows of a micro-batch, **n** pairs in it. The rows of a pair have one id; a micro-batch holds
whole pairs, because the method names them as its atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pair_rows", "preference_loss"]


def pair_rows(pair_ids: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the better and of the worse responses, pair by pair: (b,), (b,) -> (n,), (n,).

    ``pair_ids`` are whole numbers, ``chosen`` is True at the better one of each two. Raises
    ValueError where an id does not have exactly one of each.
    """
    order = torch.argsort(pair_ids, stable=True)
    better, worse = order[chosen[order]], order[~chosen[order]]
    if len(better) != len(worse) or not torch.equal(pair_ids[better], pair_ids[worse]):
        raise ValueError("every pair needs one better and one worse row in the same micro-batch")
    if bool((pair_ids[better].diff() == 0).any()):
        raise ValueError("a pair id stands for more than one pair")
    return better, worse


def preference_loss(margins: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Negative log-likelihood of preferences under Bradley-Terry: (n,) -> (n,), nats.

    ``-log sigmoid(margin)``; with ``label_smoothing`` e in [0, 0.5) a preference is taken to be the
    wrong way round with probability e: ``-(1 - e) log sigmoid(m) - e log sigmoid(-m)``.
    """
    right = -torch.nn.functional.logsigmoid(margins)
    if not label_smoothing:
        return right
    wrong = -torch.nn.functional.logsigmoid(-margins)
    return (1 - label_smoothing) * right + label_smoothing * wrong

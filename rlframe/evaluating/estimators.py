"""Accuracy, pass@k and maj@k from n samples a prompt, with 95 % intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

__all__ = ["Estimate", "estimate", "majority_at_k", "pass_at_k", "wilson"]

_LEVEL = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts and the 95 % interval around it, found by ``method``."""

    value: float
    low: float
    high: float
    method: str
    prompts: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Probability that one of k samples is right, given ``correct`` of n (2107.03374, eq. 1).

    Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"k={k} and correct={correct} must lie within n={n} samples")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[str], correct: Sequence[float], k: int) -> float:
    """Probability that the most frequent answer of k samples is right, from all n of them.

    The exact mean over all C(n, k) subsets. Answers that are equally frequent share the vote; an
    answer counts as right by the mean of ``correct`` (0 to 1) over its samples. Raises ValueError
    unless 1 <= k <= n.
    """
    n = len(answers)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} must lie within n={n} samples")
    shares: dict[str, list[float]] = {}
    for answer, right in zip(answers, correct, strict=True):
        shares.setdefault(answer, []).append(float(right))
    classes = [(len(rights), math.fsum(rights) / len(rights)) for rights in shares.values()]
    return math.fsum(_won(classes, k, most) for most in range(1, k + 1)) / math.comb(n, k)


def _won(classes: Sequence[tuple[int, float]], k: int, most: int) -> float:
    """Sum over subsets of size k whose most frequent answer occurs ``most`` times.

    Each counts with the mean share of its winners. The tables run over the classes so far, by
    subset size and number of winners: how many subsets there are, and the sum of winners' shares.
    """
    ways: dict[tuple[int, int], float] = {(0, 0): 1.0}
    shares: dict[tuple[int, int], float] = {}
    for count, share in classes:
        next_ways: dict[tuple[int, int], float] = {}
        next_shares: dict[tuple[int, int], float] = {}
        for (size, winners), number in ways.items():
            for taken in range(min(count, most, k - size) + 1):
                wins = taken == most
                key = (size + taken, winners + wins)
                choices = math.comb(count, taken)
                before = shares.get((size, winners), 0.0)
                next_ways[key] = next_ways.get(key, 0.0) + number * choices
                added = (before + (share * number if wins else 0.0)) * choices
                next_shares[key] = next_shares.get(key, 0.0) + added
        ways, shares = next_ways, next_shares
    return math.fsum(s / winners for (size, winners), s in shares.items() if size == k and winners)


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of one value a prompt (each 0 to 1), with an interval over prompts.

    Wilson's where every value is 0 or 1, else the percentile bootstrap over prompts. Raises
    ValueError without values.
    """
    if not len(values):
        raise ValueError("there is nothing to estimate from")
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    if bool(np.isin(array, (0.0, 1.0)).all()):
        low, high = wilson(int(array.sum()), len(array))
        return Estimate(mean, low, high, "wilson", len(array))
    random = np.random.Generator(np.random.PCG64(seed))
    means = [
        float(array[random.integers(0, len(array), len(array))].mean()) for _ in range(_RESAMPLES)
    ]
    tail = (1 - _LEVEL) / 2
    low, high = (float(q) for q in np.quantile(means, (tail, 1 - tail)))
    return Estimate(mean, min(low, mean), max(high, mean), "bootstrap", len(array))


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion (1927)."""
    z = NormalDist().inv_cdf((1 + _LEVEL) / 2)
    share, scale = successes / trials, 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / scale
    low = 0.0 if successes == 0 else max(centre - half, 0.0)
    high = 1.0 if successes == trials else min(centre + half, 1.0)
    return low, high

"""Trying again what a service or an environment did not give: which faults, after what pauses."""

from __future__ import annotations

from collections.abc import Iterator

from rlframe.rewards.values import NotAReward

__all__ = ["may_retry", "pauses"]

_LONGEST_S = 30.0


def pauses(retries: int, first_s: float) -> Iterator[float]:
    """Seconds before each retry, doubling."""
    return (min(first_s * 2**number, _LONGEST_S) for number in range(retries))


def may_retry(outcome: object) -> bool:
    """Whether an outcome is a fault that may pass: what was raised, not a value that is wrong."""
    return isinstance(outcome, BaseException) and not isinstance(outcome, NotAReward)

"""The right answer of a dataset row, under the names that data sets give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlframe import RewardError
from rlframe.data import nested_paths, nested_value

__all__ = ["AUTO", "answer_of", "check_answer_column"]

AUTO = "auto"
"""The first of the usual columns that is there."""

USUAL = ("answer", "solution", "ground_truth", "reward_model.ground_truth")
"""What ``auto`` looks for, in this order; the last is verl's."""


def answer_of(columns: Mapping[str, Any], column: str, reward: str) -> str:
    """The answer as text without blanks around it; dots in ``column`` reach inside of columns.

    Raises RewardError where it is not there, or is neither text nor a number.
    """
    path, value = _find(columns, column, reward)
    if value is None or isinstance(value, Mapping | list | tuple):
        raise RewardError(
            f"reward '{reward}': the answer in '{path}' is {value!r}, neither text nor a number"
        )
    return str(value).strip()


def check_answer_column(columns: Sequence[str], column: str, reward: str) -> None:
    """Raises RewardError where the dataset's columns cannot hold the answer."""
    tops = {name.partition(".")[0] for name in (USUAL if column == AUTO else (column,))}
    if column not in columns and not tops & set(columns):
        raise RewardError(_missing(column, reward, sorted(columns)))


def _find(columns: Mapping[str, Any], column: str, reward: str) -> tuple[str, Any]:
    """The path of the answer, and the answer."""
    for path in USUAL if column == AUTO else (column,):
        try:
            return path, nested_value(columns, path)
        except KeyError:
            continue
    raise RewardError(_missing(column, reward, nested_paths(columns)))


def _missing(column: str, reward: str, known: Sequence[str]) -> str:
    what = f"one of {', '.join(USUAL)}" if column == AUTO else f"'{column}'"
    return (
        f"reward '{reward}' compares with column {what}, which the dataset does not have; "
        f"it has: {', '.join(known) or 'none'}. Set the reward's column"
    )

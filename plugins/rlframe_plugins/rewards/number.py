"""1 when the last number of the response is that of the answer, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.interfaces.data import Reward, RewardValue
from rlframe_plugins.rewards.answers import AUTO, answer_of, check_answer_column

__all__ = ["NumberReward", "last_number"]

_NUMBER = re.compile(
    r"(?:(?<![\d.)\]\w])[-+\u2212])?"  # a sign, not a minus between two terms
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
    r"(?:[eE][-+]?\d{1,4}(?!\w))?"
)


class NumberReward(Reward):
    """Reads the last number in the response: ``So it is 1,024.`` says 1024.

    Thousands may be separated by commas; ``1.0`` equals ``1``. The answer's own last number counts,
    so that ``... #### 42`` is an answer of 42. A response without a number gets 0.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the number reward."""

        column: str = AUTO
        """Column of the right answer; auto takes the usual names."""
        tolerance: float = 0.0
        """Largest difference that is right, at least 0, as a share of the answer's size."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            check_range(self, "tolerance", 0)
            if not self.column:
                raise ValueError("column must name a column of the dataset")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the answer's column is not there."""
        check_answer_column(columns, self.config.column, "number")

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`. Raises RewardError where the answer holds no number."""
        answer = answer_of(row.columns, self.config.column, "number")
        wanted = last_number(answer)
        if wanted is None:
            raise RewardError(f"reward 'number': the answer {answer!r} holds no number")
        return [float(self._is_right(last_number(e.text), wanted)) for e in episodes]

    def _is_right(self, found: Decimal | None, wanted: Decimal) -> bool:
        if found is None or found == wanted or not self.config.tolerance:
            return found == wanted
        with localcontext() as context:
            context.prec = 50
            share = Decimal(self.config.tolerance)
            return abs(found - wanted) <= share * abs(wanted)


def last_number(text: str) -> Decimal | None:
    """The last number that a text holds, exactly; None when there is none."""
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    if found is None:
        return None
    return Decimal(found[0].replace(",", "").replace("\u2212", "-"))

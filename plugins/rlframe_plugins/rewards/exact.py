"""1 when the response is the answer, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlframe import Episode, Row
from rlframe.interfaces.data import Reward, RewardValue
from rlframe_plugins.rewards.answers import AUTO, answer_of, check_answer_column

__all__ = ["ExactAnswer"]


class ExactAnswer(Reward):
    """Compares the response with a column of the dataset, both without blanks around them."""

    @dataclass(frozen=True)
    class Config:
        """Options of the exact-answer reward."""

        column: str = AUTO
        """Column of the right answer, text or a number; auto takes the usual names."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if not self.column:
                raise ValueError("column must name a column of the dataset")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the answer's column is not there."""
        check_answer_column(columns, self.config.column, "exact")

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`."""
        answer = answer_of(row.columns, self.config.column, "exact")
        return [float(episode.text.strip() == answer) for episode in episodes]

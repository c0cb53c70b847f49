"""1 when the response is the answer, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlframe import Episode, RewardError, Row
from rlframe.interfaces.data import Reward, RewardValue

__all__ = ["ExactAnswer"]


class ExactAnswer(Reward):
    """Compares the response with a column of the dataset, both without blanks around them."""

    @dataclass(frozen=True)
    class Config:
        """Options of the exact-answer reward."""

        column: str = "answer"
        """Column that holds the right answer: text or a number."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if not self.column:
                raise ValueError("column must name a column of the dataset")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the answer's column is not there."""
        if self.config.column not in columns:
            raise RewardError(
                f"reward 'exact' compares with column '{self.config.column}', which the dataset "
                f"does not have; it has: {', '.join(sorted(columns))}. Set reward.column"
            )

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`."""
        self.check(list(row.columns))
        answer = str(row.columns[self.config.column]).strip()
        return [float(episode.text.strip() == answer) for episode in episodes]

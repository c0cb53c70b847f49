"""A reward that knows how far off a number is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.interfaces.data import Reward, RewardValue

__all__ = ["Near", "last_number"]


def last_number(text: str) -> int | None:
    """The last whole number in a text."""
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None


class Near(Reward):
    """1 for the right number, half of it ``scale`` off, 0 for no number."""

    @dataclass(frozen=True)
    class Config:
        """Options of the reward."""

        column: str = "answer"
        """Column of the dataset that holds the right number."""
        scale: float = 10.0
        """Distance at which the reward is a half, above 0."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "scale", above=0)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def check(self, columns: Sequence[str]) -> None:
        """Before the run. Raises RewardError where the column is not there."""
        if self.config.column not in columns:
            raise RewardError(
                f"reward 'near' needs column '{self.config.column}': set reward.column to one of "
                f"{', '.join(sorted(columns))}"
            )

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """One value an episode, in order."""
        self.check(list(row.columns))
        right = int(row.columns[self.config.column])
        return [self._one(episode.text, right) for episode in episodes]

    def _one(self, text: str, right: int) -> float:
        said = last_number(text)
        if said is None:
            return 0.0
        return float(self.config.scale / (self.config.scale + abs(said - right)))

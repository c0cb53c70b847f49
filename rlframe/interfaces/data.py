"""Datasets, rewards, environments: what a user brings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlframe.errors import RewardError
from rlframe.requests import Completion, Episode, Request, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Dataset", "Environment", "Generate", "Reward", "RewardValue"]

Generate = Callable[[Request], Awaitable[Completion]]
RewardValue = float | Mapping[str, float] | None | RewardError
"""A number, named parts of a number, None to abstain; an error where just this one failed."""


class Dataset(ABC):
    """Rows by position; the same position always gives the same row."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows, at least 1."""

    @abstractmethod
    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Columns of one row. Raises ``DataError`` naming file and line."""

    def where(self, index: int) -> str:
        """Where a row stands, for messages: ``file:line`` where there is a file."""
        return f"row {index}"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the content does; kept in snapshots."""

    @classmethod
    @abstractmethod
    def open(cls, uri: str) -> Dataset:
        """Open ``scheme:rest?options``. Raises ``DataError`` before anything is started."""

    @classmethod
    def anchor(cls, uri: str) -> str:
        """The same dataset from any working directory: relative paths made absolute.

        It is what the run's folder keeps, so that ``--resume`` finds its data from elsewhere.
        """
        return uri


class Reward(ABC):
    """Scores finished episodes."""

    config: Any
    limits_itself: ClassVar[bool] = False
    """Whether its calls wait for their turn and end by limits of its own: no reward.timeout_s."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """One value an episode of the group, in order; ``episode.text`` is the decoded response."""

    def check(self, columns: Sequence[str]) -> None:  # noqa: B027 - optional
        """Called before the run with the dataset's columns; raises RewardError if one lacks."""


class Environment(ABC):
    """Turns a request into an episode by asking the policy once or several times."""

    config: Any
    gives_rewards: ClassVar[bool] = False
    """Whether its episodes have ``earned`` something: rewards may then be left out."""

    @classmethod
    def context_tokens(cls, config: Any) -> int:
        """The longest context that it asks with, tokens; 0: that of the prompts."""
        return 0

    def __init__(self, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.tokenizer = tokenizer

    @abstractmethod
    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """Play one episode."""

    def close(self) -> None:  # noqa: B027 - optional
        """End what it started; it is not asked again."""

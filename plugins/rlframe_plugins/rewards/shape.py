"""Rewards for the shape of a response: a pattern, tags, its length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlframe import Episode, Row
from rlframe.config import check_range
from rlframe.interfaces.data import Reward, RewardValue
from rlframe_plugins.rewards.answers import answer_of, check_answer_column

__all__ = ["FormatReward", "LengthReward", "RegexReward"]


class RegexReward(Reward):
    """1 where a regular expression is found in the response, else 0.

    With ``column`` the first group of its last match must be the answer in that column, both
    without blanks around them: ``pattern='#### (.*)'``.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the regex reward."""

        pattern: str
        """Regular expression of Python's re; the dot also matches line breaks."""
        match: Literal["search", "full"] = "search"
        """search looks anywhere, full wants the whole response to match."""
        column: str = ""
        """Column that the first group must equal; empty compares with nothing."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            try:
                compiled = re.compile(self.pattern, re.DOTALL)
            except re.error as error:
                raise ValueError(f"pattern {self.pattern!r}: {error}") from error
            if self.column and not compiled.groups:
                raise ValueError("pattern needs a group, as in '#### (.*)', to compare with column")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._pattern = re.compile(config.pattern, re.DOTALL)

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when the answer's column is not there."""
        if self.config.column:
            check_answer_column(columns, self.config.column, "regex")

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`."""
        answer = None
        if self.config.column:
            answer = answer_of(row.columns, self.config.column, "regex")
        return [float(self._is_right(episode.text, answer)) for episode in episodes]

    def _is_right(self, text: str, answer: str | None) -> bool:
        if self.config.match == "full":
            found = self._pattern.fullmatch(text)
        else:
            found = next(iter(reversed(list(self._pattern.finditer(text)))), None)
        if found is None or answer is None:
            return found is not None
        return (found[1] or "").strip() == answer


class FormatReward(Reward):
    """1 where the response is the given tags one after the other, each with text inside, else 0.

    ``tags=[think, answer]`` wants ``<think>...</think> <answer>...</answer>`` and nothing else but
    blanks; each tag occurs once.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the format reward."""

        tags: tuple[str, ...] = ("think", "answer")
        """Names of the tags in their order."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            if not self.tags:
                raise ValueError("tags must name at least one tag")
            for tag in self.tags:
                if not re.fullmatch(r"[\w-]+", tag):
                    raise ValueError(f"tags must be words, not {tag!r}")
            if len(set(self.tags)) < len(self.tags):
                raise ValueError("tags must each be named once")

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`."""
        return [float(self._is_right(episode.text)) for episode in episodes]

    def _is_right(self, text: str) -> bool:
        rest = text.strip()
        for tag in self.config.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if text.count(opening) != 1 or text.count(closing) != 1:
                return False
            inside, found, after = rest.removeprefix(opening).partition(closing)
            if not rest.startswith(opening) or not found or not inside.strip():
                return False
            rest = after.lstrip()
        return not rest


class LengthReward(Reward):
    """0 for a response of a wanted length, down to -1 beyond it.

    Within ``buffer`` tokens before ``max_tokens`` it falls linearly from 0 to -1, and stays -1
    beyond (DAPO, arXiv 2503.14476, equation 13). Below ``min_tokens`` it is -1.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the length reward; lengths count sampled tokens."""

        max_tokens: int
        """Length from which the reward is -1, tokens, at least 1."""
        buffer: int = 0
        """Tokens before max_tokens over which the reward falls, 0 to max_tokens."""
        min_tokens: int = 0
        """Shortest response that is not punished, tokens, at least 0."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            check_range(self, "max_tokens", 1)
            check_range(self, "buffer", 0, self.max_tokens)
            check_range(self, "min_tokens", 0, self.max_tokens - self.buffer)

    def __init__(self, config: Config) -> None:
        super().__init__(config)

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`."""
        return [self._value(episode.length) for episode in episodes]

    def _value(self, tokens: int) -> float:
        config = self.config
        over = tokens - (config.max_tokens - config.buffer)
        if tokens < config.min_tokens:
            return -1.0
        if over <= 0:
            return 0.0
        return -min(1.0, over / config.buffer) if config.buffer else -1.0

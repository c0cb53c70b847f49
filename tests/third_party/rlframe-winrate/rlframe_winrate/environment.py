"""An environment: after a wrong number it says in which direction the right one lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlframe import Completion, Episode, Request, Row, Segment
from rlframe.config import check_range
from rlframe.interfaces.data import Environment, Generate
from rlframe_winrate.reward import last_number

__all__ = ["Warmer"]


class Warmer(Environment):
    """The policy guesses until the number is right, or its turns are used up.

    Tokens stay as they were sampled: each turn goes on from the exact ids of those before, and
    what is said in between is masked.
    """

    @dataclass(frozen=True)
    class Config:
        """Options of the environment."""

        turns: int = 2
        """Guesses at most, at least 1."""
        higher: str = "<"
        """Said after a number that is too low."""
        lower: str = ">"
        """Said after one that is too high, or none at all."""
        column: str = "answer"
        """Column of the dataset that holds the right number."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "turns", 1)

    def __init__(self, config: Config | None, tokenizer: Any) -> None:
        super().__init__(config or self.Config(), tokenizer)

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """Play one episode; many run at once on one loop, so nothing is kept on self."""
        right = int(row.columns[self.config.column])
        segment = Segment(list(request.prompt_ids), [], [], [], [], [])
        for turn in range(self.config.turns):
            ids = (*segment.prompt_ids, *segment.response_ids)
            done = await generate(dataclasses.replace(request, prompt_ids=ids))
            _sampled(segment, done, turn)
            text = str(self.tokenizer.decode(done.token_ids, skip_special_tokens=True))
            said = last_number(text)
            if done.finish_reason != "stop" or said == right or turn + 1 == self.config.turns:
                break
            low = said is not None and said < right
            _told(segment, self._ids(self.config.higher if low else self.config.lower), turn + 1)
        return Episode(
            request, [segment], done.finish_reason, text, figures={"guesses": float(turn + 1)}
        )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def _sampled(segment: Segment, done: Completion, turn: int) -> None:
    count = len(done.token_ids)
    segment.response_ids += done.token_ids
    segment.response_mask += [True] * count
    segment.logprobs += done.logprobs
    segment.versions += done.versions
    segment.turn_ids += [turn] * count


def _told(segment: Segment, ids: Sequence[int], turn: int) -> None:
    """Tokens that no policy sampled."""
    count = len(ids)
    segment.response_ids += ids
    segment.response_mask += [False] * count
    segment.logprobs += [0.0] * count
    segment.versions += [-1] * count
    segment.turn_ids += [turn] * count

"""What every reward must do. Subclass :class:`RewardKit` and say how yours is made.

Example::

    class TestMine(RewardKit):
        columns = {"prompt": "1+1=", "answer": "2"}
        cases = (("2", 1.0), ("3", 0.0))

        def make(self):
            return Mine(Mine.Config())
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rlframe.errors import RewardError
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.requests import Episode, Request, Row, Segment
from rlframe.rewards import Scorer, WeightedReward
from rlframe.rewards.values import as_parts

__all__ = ["RewardKit"]


class RewardKit:
    """Tests of one reward over one dataset row.

    ``columns`` is the row, ``cases`` are responses with the outcome (the sum of parts) that each
    must get, None where the reward abstains; ``needs`` are the columns that it cannot do without.
    """

    columns: ClassVar[Mapping[str, Any]] = {"prompt": "1+1=", "answer": "2"}
    cases: ClassVar[Sequence[tuple[str, float | None]]] = ()
    needs: ClassVar[Sequence[str]] = ()

    def make(self) -> Reward:
        """A fresh reward."""
        raise NotImplementedError(f"{type(self).__name__}.make gives no reward")

    # --- what is checked ----------------------------------------------------------------------

    def test_cases_get_their_outcome(self) -> None:
        """Each case by itself and all as one group."""
        assert self.cases, "name some cases: (response, outcome)"
        texts = [text for text, _ in self.cases]
        wanted = [outcome for _, outcome in self.cases]
        assert self._outcomes(texts) == pytest.approx(wanted)
        for text, outcome in self.cases:
            assert self._outcomes([text]) == pytest.approx([outcome])

    def test_one_value_an_episode(self) -> None:
        """Also for the empty response, one of no tokens, and a group of one."""
        values = self._score(["", "x", *(text for text, _ in self.cases)])
        assert isinstance(values, list)
        assert len(values) == len(self.cases) + 2
        for value in values:
            as_parts(value, "reward")
        assert len(self._score([""])) == 1

    def test_order_does_not_matter(self) -> None:
        """A response gets the same value at every place in its group."""
        texts = ["", *(text for text, _ in self.cases)]
        assert self._score(texts[::-1]) == self._score(texts)[::-1]

    def test_the_same_twice(self) -> None:
        """Scoring has no memory: neither in one object nor between two."""
        texts = [text for text, _ in self.cases]
        reward = self.make()
        first = self._score(texts, reward)
        assert self._score(texts, reward) == first
        assert self._score(texts) == first

    def test_groups_at_once(self) -> None:
        """Groups that are scored together get what they get alone."""
        texts = [text for text, _ in self.cases]
        reward = self.make()
        row = self._row()

        async def together() -> list[list[RewardValue]]:
            groups = [[_episode(text)] for text in texts]
            return await asyncio.gather(*(reward.score(row, group) for group in groups))

        alone = [self._score([text]) for text in texts]
        assert asyncio.run(together()) == alone

    def test_nothing_is_changed(self) -> None:
        """Row and episodes are as they were: the Scorer writes rewards, not the reward."""
        row, episodes = self._row(), [_episode(text) for text, _ in self.cases]
        before = copy.deepcopy((row, episodes))
        asyncio.run(self.make().score(row, episodes))
        assert (row, episodes) == before

    def test_missing_columns_are_an_early_error(self) -> None:
        """``check`` takes the dataset's columns and names the one that is not there."""
        self.make().check(list(self.columns))
        for name in self.needs:
            rest = [column for column in self.columns if column != name]
            with pytest.raises(RewardError, match=name):
                self.make().check(rest)
            with pytest.raises(RewardError, match=name):
                self._outcomes(["x"], {n: self.columns[n] for n in rest})

    # --- inside -------------------------------------------------------------------------------

    def _row(self, columns: Mapping[str, Any] | None = None) -> Row:
        return Row((1, 2), dict(self.columns if columns is None else columns), 0)

    def _score(self, texts: Sequence[str], reward: Reward | None = None) -> list[RewardValue]:
        episodes = [_episode(text) for text in texts]
        return asyncio.run((reward or self.make()).score(self._row(), episodes))

    def _outcomes(
        self, texts: Sequence[str], columns: Mapping[str, Any] | None = None
    ) -> list[float | None]:
        scorer = Scorer([WeightedReward("reward", self.make())])
        episodes = [_episode(text) for text in texts]
        asyncio.run(scorer.score(self._row(columns), episodes))
        return [episode.reward for episode in episodes]


def _episode(text: str) -> Episode:
    """One turn of as many tokens as the text has letters."""
    ids = [ord(letter) for letter in text]
    count = len(ids)
    segment = Segment([1, 2], ids, [True] * count, [-1.0] * count, [0] * count, [0] * count)
    return Episode(Request((1, 2)), [segment], "stop", text)

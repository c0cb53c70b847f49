"""The rows of a dataset against the method and the reward, before anything is started."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlframe.asking import ask
from rlframe.data.encode import check_columns, encode_prompt, prompt_of
from rlframe.data.mixture import Share, shares_of
from rlframe.data.nested import row_of
from rlframe.errors import RewardError
from rlframe.requests import Row

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm
    from rlframe.config import Config
    from rlframe.interfaces.data import Dataset
    from rlframe.rewards import Scorer

__all__ = ["check_rows"]

_MOST_S = 3.0
"""Longest time for the rows of one source, seconds: a run finds what is wrong in later ones."""


def check_rows(
    key: str,
    dataset: Dataset,
    config: Config,
    algorithm: Algorithm,
    scorer: Scorer,
    tokenizer: Any = None,
) -> None:
    """Check every row: its prompt, and what the method or reward reads of it.

    ``key`` is "train" or "validate". An offline method reads its examples from a row whose
    ``prompt_ids`` stand in for the real ones. With a ``tokenizer`` prompts are encoded too, where
    an over-long one is an error. With ``reward.on_error=skip`` rewards are tried on the first row
    of every source only. A source that takes longer than some seconds is not read to its end.
    Raises DataError, ModelError, RewardError and what ``Algorithm.examples`` raises.
    """
    for share in shares_of(dataset):
        _check_source(key, share, dataset, _RowCheck(config, algorithm, scorer, tokenizer))


def _check_source(key: str, share: Share, dataset: Dataset, check: _RowCheck) -> None:
    ends = time.monotonic() + _MOST_S
    for index in range(share.start, share.start + share.rows):
        source = dataset.where(index)
        check(f"data.{key} {source}", row_of(dataset, index), first=index == share.start)
        if time.monotonic() > ends:
            return


class _RowCheck:
    def __init__(
        self, config: Config, algorithm: Algorithm, scorer: Scorer, tokenizer: Any
    ) -> None:
        self._data, self._algorithm, self._scorer = config.data, algorithm, scorer
        self._tokenizer = tokenizer if config.data.over_long == "error" else None
        self._rewards_of_all = config.reward.on_error == "fail"

    def __call__(self, source: str, columns: Mapping[str, Any], *, first: bool) -> None:
        check_columns(columns, self._data, source)
        if self._tokenizer is not None and self._may_be_wrong(columns, source):
            encode_prompt(columns, self._tokenizer, self._data, source=source)
        if self._algorithm.offline:
            row = {**columns, "prompt": prompt_of(columns, self._data, source)}
            ask(self._algorithm, "examples", Row((0,), row, source=source))
        elif first or self._rewards_of_all:
            self._try_rewards(source if first else f"{source}: unlike the first row", columns)

    def _may_be_wrong(self, columns: Mapping[str, Any], source: str) -> bool:
        """Whether encoding could tell something: not of text with fewer bytes than its limit."""
        prompt = prompt_of(columns, self._data, source)
        if not isinstance(prompt, str) or not prompt or self._data.template == "chat":
            return True
        size = len(prompt.encode("utf-8", "surrogatepass"))
        return size > self._data.max_prompt_tokens // 2 or not prompt.isprintable()

    def _try_rewards(self, source: str, columns: Mapping[str, Any]) -> None:
        try:
            self._scorer.check(columns)
        except RewardError as error:
            raise RewardError(f"{source}: {error}") from error

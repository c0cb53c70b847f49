"""The first rows of a dataset against the method and the reward, before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlframe.asking import ask
from rlframe.data.encode import check_columns, prompt_of
from rlframe.data.mixture import shares_of
from rlframe.requests import Row

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm
    from rlframe.config import Config
    from rlframe.interfaces.data import Dataset
    from rlframe.rewards import Scorer

__all__ = ["check_rows"]


def check_rows(
    key: str, dataset: Dataset, config: Config, algorithm: Algorithm, scorer: Scorer
) -> None:
    """Check the first row of every source: its prompt, and what the method or reward reads of it.

    ``key`` is "train" or "validate". An offline method reads its examples from a row whose
    ``prompt_ids`` stand in for the real ones: no tokenizer is needed. Raises DataError, RewardError
    and what ``Algorithm.examples`` raises.
    """
    for share in shares_of(dataset):
        columns = dict(dataset[share.start])
        source = dataset.where(share.start)
        check_columns(columns, config.data, f"data.{key} {source}")
        if not algorithm.offline:
            scorer.check(columns)
            continue
        columns["prompt"] = prompt_of(columns, config.data, source)
        ask(algorithm, "examples", Row((0,), columns, source=source))

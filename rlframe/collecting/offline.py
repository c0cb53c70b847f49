"""Collecting for methods whose data writes the responses: nothing is sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlframe.algorithm import Algorithm
from rlframe.asking import ask
from rlframe.batching.assemble import pack_groups
from rlframe.calling.protocol import ONE_TO_ONE, protocol
from rlframe.collecting.collected import Gathered
from rlframe.collecting.collector import EPISODES_PER_GROUP
from rlframe.interfaces.transfer import Produced
from rlframe.requests import Episode, FinishReason, Group, Row, Segment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["OfflineCollector"]


class OfflineCollector:
    """For methods whose data writes the responses: tokenises them, samples nothing."""

    def __init__(
        self,
        algorithm: Algorithm,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int,
        prompt_key: str = "prompt",
    ) -> None:
        self._algorithm, self._tokenizer, self._most = algorithm, tokenizer, max_new_tokens
        self._prompt_key = prompt_key

    @protocol(ONE_TO_ONE)
    def collect(self, rows: Sequence[Row]) -> Produced:
        """One group a row, one episode an example: a :class:`Gathered`, and their columns."""
        groups = [self._group(row) for row in rows]
        columns, summaries = pack_groups(groups, self._algorithm.schema(), self._prompt_key)
        return Produced(Gathered(summaries), columns)

    def close(self) -> None:
        """Nothing to end."""

    def _group(self, row: Row) -> Group:
        episodes = []
        for position, example in enumerate(ask(self._algorithm, "examples", row)):
            ids, reason = self._encode(example.response)
            count = len(ids)
            segment = Segment(
                list(row.prompt_ids), ids, [True] * count, [0.0] * count, [-1] * count, [0] * count
            )
            request = dataclasses.replace(
                row.request(),
                group_id=row.group_id,
                episode_id=row.group_id * EPISODES_PER_GROUP + position,
            )
            columns = dict(example.columns)
            episodes.append(
                Episode(request, [segment], reason, example.response, None, {}, columns)
            )
        return Group(row, episodes)

    def _encode(self, response: str) -> tuple[list[int], FinishReason]:
        ids = list(self._tokenizer.encode(response, add_special_tokens=False))
        end = self._tokenizer.eos_token_id
        if end is not None:
            ids.append(int(end))
        return (ids, "stop") if len(ids) <= self._most else (ids[: self._most], "length")

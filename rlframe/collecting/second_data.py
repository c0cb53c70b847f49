"""A second data set beside the prompts: written responses for a term of their own (ptx)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from rlframe.algorithm import Algorithm, Example
from rlframe.asking import ask
from rlframe.batching.batch import Batch
from rlframe.batching.columns import Column, Schema
from rlframe.batching.packed import Packed
from rlframe.collecting.offline import OfflineCollector
from rlframe.config import Config
from rlframe.data import PromptStream, open_dataset, read_rows
from rlframe.host.host import PluginHost
from rlframe.requests import Row

__all__ = ["SecondData"]

_MASK = "second_mask"


class SecondData:
    """Draws ``per_prompt`` rows for each prompt of a step and lays them beside its batch.

    They share the prompts' group ids, so that every mini-batch has its share of them, and have
    ``train=False``: no reward, advantage or term of the method's own counts them. Their response
    tokens are True in the column ``second_mask``, all others False.
    """

    def __init__(
        self,
        stream: PromptStream,
        algorithm: Algorithm,
        tokenizer: Any,
        per_prompt: int,
        longest: int,
    ) -> None:
        self.stream, self._per_prompt = stream, per_prompt
        self._encode = OfflineCollector(_Second(algorithm), tokenizer, longest)

    @classmethod
    def of(
        cls, config: Config, host: PluginHost, algorithm: Algorithm, tokenizer: Any, longest: int
    ) -> SecondData | None:
        """What ``data.second`` names, in an order of its own; None where it names nothing.

        Raises what is wrong with its first row.
        """
        if config.data.second is None:
            return None
        dataset = open_dataset(config.data.second, host, config.data)
        stream = PromptStream(dataset, tokenizer, config.data, seed=config.seed + 1)
        for row in islice(read_rows(dataset, tokenizer, config.data), 1):
            ask(algorithm, "second_examples", row)
        return cls(stream, algorithm, tokenizer, config.data.second_per_prompt, longest)

    def join(self, batch: Batch) -> Batch:
        """The batch with as many rows more as are due."""
        groups = np.unique(np.asarray(batch["group_ids"]))
        drawn = self.stream.draw(len(groups) * self._per_prompt)
        rows = [dataclasses.replace(row, group_id=n) for n, row in enumerate(drawn)]
        columns = dict(self._encode.collect(rows).columns)
        count = len(columns["group_ids"])
        columns["group_ids"] = Packed(
            np.repeat(groups, self._per_prompt)[columns["group_ids"].values]
        )
        first = self.stream.drawn - len(drawn)
        columns["episode_ids"] = Packed(-1 - first - np.arange(count, dtype=np.int64))
        columns["train"] = Packed(np.zeros(count, bool))
        columns[_MASK] = columns["response_mask"]
        lengths = batch.lengths("response_ids")
        marked = batch.add({_MASK: Packed(np.zeros(int(lengths.sum()), bool), lengths)})
        for name in (name for name in marked.columns if name not in columns):
            columns[name] = _absent(marked.schema[name], columns, marked)
        made = {name: columns[name] for name in marked.columns}
        extra = Batch.from_columns(made, schema=batch.schema, transfer=batch.transfer)
        return Batch.concat([marked, extra])


class _Second(Algorithm):
    """Reads what ``second_examples`` of a method says."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self._algorithm = algorithm

    def examples(self, row: Row) -> list[Example]:
        return self._algorithm.second_examples(row)

    def schema(self) -> Schema:
        return self._algorithm.schema()


def _absent(column: Column, columns: Mapping[str, Packed], batch: Batch) -> Packed:
    """What stands where a row has no such thing: NaN a row, zero a token, None."""
    rows, lengths = len(columns["train"]), columns["response_ids"].lengths
    if column.axis is not None:
        assert lengths is not None
        return Packed(np.zeros(int(lengths.sum()), column.dtype), lengths)
    if column.dtype == "object":
        return Packed(np.full(rows, None, object))
    width = batch.packed(column.name).values.shape[1:]
    empty = np.nan if column.dtype == "float32" else 0
    return Packed(np.full((rows, *width), empty, column.dtype))

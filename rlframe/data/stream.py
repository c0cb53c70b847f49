"""The prompts of a run in order: shuffled each epoch, each once an epoch, resumable at any draw."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe.data.encode import limit_prompt, prompt_of, prompt_tokens
from rlframe.errors import DataError, SnapshotError
from rlframe.interfaces.data import Dataset
from rlframe.requests import Row, Sampling

if TYPE_CHECKING:
    from rlframe.config import DataConfig

__all__ = ["PromptStream", "read_rows"]


class PromptStream:
    """Draws prompts for ever; a new order each epoch, which depends on ``seed`` and epoch alone.

    ``epoch`` counts from 0, ``drawn`` is the number of rows given out and the next ``group_id``;
    ``dropped`` and ``truncated`` count over-long prompts as they were met.
    """

    def __init__(
        self,
        dataset: Dataset,
        tokenizer: Any,
        config: DataConfig,
        *,
        seed: int = 0,
        sampling: Sampling | None = None,
    ) -> None:
        self.dataset = dataset
        self.tokenizer = tokenizer
        self.config = config
        self.seed = seed
        self.sampling = sampling or Sampling()
        self.drawn = self.dropped = self.truncated = 0
        self._enter(0, 0)

    @property
    def epoch(self) -> int:
        """Whole passes over the dataset so far."""
        return self._epoch

    @property
    def position(self) -> int:
        """Rows of this epoch that are behind us, dropped ones included."""
        return self._position

    def draw(self, count: int) -> list[Row]:
        """The next ``count`` prompts; runs on into the next epoch.

        Raises DataError for a bad row, or when every prompt is over-long.
        """
        rows: list[Row] = []
        fruitless = 0
        while len(rows) < count:
            row = self._next()
            if row is not None:
                rows.append(row)
                fruitless = 0
                continue
            fruitless += 1
            if fruitless >= 2 * len(self.dataset):
                raise DataError(
                    f"all {len(self.dataset)} prompts are longer than "
                    f"data.max_prompt_tokens={self.config.max_prompt_tokens}: raise it"
                )
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, and what it read."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "drawn": self.drawn,
            "dropped": self.dropped,
            "truncated": self.truncated,
            "rows": len(self.dataset),
            "fingerprint": self.dataset.fingerprint,
            "order": self._order_hash(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken.

        Raises SnapshotError when the data, its order (seed, shuffle) or its length have changed.
        """
        if (state["fingerprint"], state["rows"]) != (self.dataset.fingerprint, len(self.dataset)):
            raise SnapshotError(
                f"the dataset has changed since the snapshot: it had {state['rows']} rows and "
                f"fingerprint {state['fingerprint']}, now {len(self.dataset)} rows and "
                f"{self.dataset.fingerprint}. Restore data.train, or start a new run"
            )
        self._enter(int(state["epoch"]), int(state["position"]))
        if state["order"] != self._order_hash():
            raise SnapshotError(
                "the order of prompts is not that of the snapshot, so that some would be skipped "
                "or repeated: resume with the run's own seed and data.shuffle"
            )
        self.drawn = int(state["drawn"])
        self.dropped = int(state["dropped"])
        self.truncated = int(state["truncated"])

    # --- inside -------------------------------------------------------------------------------

    def _enter(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = epoch_order(len(self.dataset), self.seed, epoch, self.config.shuffle)

    def _order_hash(self) -> str:
        return hashlib.sha256(self._order.tobytes()).hexdigest()[:16]

    def _next(self) -> Row | None:
        """The row at the current position, or None when it is dropped; moves on by one."""
        index = int(self._order[self._position])
        row, cut = _row(self, index, self.drawn)
        self.truncated += cut
        if row is None:
            self.dropped += 1
        else:
            self.drawn += 1
        if self._position + 1 == len(self.dataset):
            self._enter(self._epoch + 1, 0)
        else:
            self._position += 1
        return row


def read_rows(
    dataset: Dataset, tokenizer: Any, config: DataConfig, *, sampling: Sampling | None = None
) -> Iterator[Row]:
    """Every row once in the dataset's order (for validation); over-long ones as the config says.

    ``group_id`` is the row's number in the dataset.
    """
    stream = PromptStream(dataset, tokenizer, config, sampling=sampling)
    for index in range(len(dataset)):
        row, _ = _row(stream, index, index)
        if row is not None:
            yield row


def epoch_order(rows: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """The order of an epoch, (rows,) int64: sorted by random keys, so that it never changes."""
    if not shuffle:
        return np.arange(rows, dtype=np.int64)
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(rows)
    return np.argsort(bits, kind="stable").astype(np.int64)


def _row(stream: PromptStream, index: int, group_id: int) -> tuple[Row | None, int]:
    """The encoded row (None: dropped) and whether it was cut (0 or 1)."""
    source = stream.dataset.where(index)
    columns = dict(stream.dataset[index])
    full = prompt_tokens(columns, stream.tokenizer, stream.config, source=source)
    ids = limit_prompt(full, stream.config, source)
    if ids is None:
        return None, 0
    columns["prompt"] = prompt_of(columns, stream.config, source)
    row = Row(ids, columns, group_id, stream.sampling, source)
    return row, int(len(ids) < len(full))

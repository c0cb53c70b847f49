"""The prompts of a run in order: shuffled each epoch, each once an epoch, resumable at any draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlframe.data.cursor import Turns
from rlframe.data.encode import limit_prompt, prompt_of, prompt_tokens
from rlframe.data.mixture import shares_of
from rlframe.data.nested import row_of
from rlframe.errors import DataError, SnapshotError
from rlframe.interfaces.data import Dataset
from rlframe.requests import Row, Sampling

if TYPE_CHECKING:
    from rlframe.config import DataConfig

__all__ = ["PromptStream", "read_rows"]


class PromptStream:
    """Draws prompts for ever; a new order each epoch, which depends on ``seed`` and epoch alone.

    A mixture is drawn by weight, and each of its sources has epochs of its own: every prompt comes
    once in an epoch of its source. ``drawn`` is the number of rows given out and the next
    ``group_id``; ``dropped`` and ``truncated`` count over-long prompts as they were met.
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
        self._turns = Turns(shares_of(dataset), seed, config.shuffle)

    @property
    def epoch(self) -> int:
        """Whole passes so far; of a mixture, over its least often passed source."""
        return self._turns.epoch

    @property
    def position(self) -> int:
        """Rows of this epoch that are behind us, dropped ones included; summed over sources."""
        return sum(cursor.position for cursor in self._turns.cursors)

    def draw(self, count: int) -> list[Row]:
        """The next ``count`` prompts; runs on into the next epoch.

        Raises DataError for a bad row, or when every prompt is over-long.
        """
        rows: list[Row] = []
        fruitless = 0
        while len(rows) < count:
            row, size = self._next()
            if row is not None:
                rows.append(row)
                fruitless = 0
                continue
            fruitless += 1
            if fruitless >= 2 * size:
                raise DataError(
                    f"all {size} prompts are longer than "
                    f"data.max_prompt_tokens={self.config.max_prompt_tokens}: raise it"
                )
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, and what it read."""
        return {
            "sources": self._turns.state(),
            "drawn": self.drawn,
            "dropped": self.dropped,
            "truncated": self.truncated,
            "rows": len(self.dataset),
            "fingerprint": self.dataset.fingerprint,
            "order": self._turns.order_hash(),
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
        self._turns.restore(state["sources"])
        if state["order"] != self._turns.order_hash():
            raise SnapshotError(
                "the order of prompts is not that of the snapshot, so that some would be skipped "
                "or repeated: resume with the run's own seed and data.shuffle"
            )
        self.drawn = int(state["drawn"])
        self.dropped = int(state["dropped"])
        self.truncated = int(state["truncated"])

    # --- inside -------------------------------------------------------------------------------

    def _next(self) -> tuple[Row | None, int]:
        """The next row (None: dropped) and the number of rows of its source; moves on by one."""
        cursor = self._turns.next()
        row, cut = _row(self, cursor.index, self.drawn)
        self.truncated += cut
        if row is None:
            self.dropped += 1
        else:
            self.drawn += 1
            cursor.given += 1
        cursor.advance()
        return row, cursor.share.rows


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


def _row(stream: PromptStream, index: int, group_id: int) -> tuple[Row | None, int]:
    """The encoded row (None: dropped) and whether it was cut (0 or 1)."""
    source = stream.dataset.where(index)
    columns = row_of(stream.dataset, index)
    full = prompt_tokens(columns, stream.tokenizer, stream.config, source=source)
    ids = limit_prompt(full, stream.config, source)
    if ids is None:
        return None, 0
    columns["prompt"] = prompt_of(columns, stream.config, source)
    row = Row(ids, columns, group_id, stream.sampling, source)
    return row, int(len(ids) < len(full))

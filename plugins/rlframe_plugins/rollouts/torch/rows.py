"""The state of the running sequences, one row each, as arrays that a step updates at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.requests import Completion, FinishReason, Request
from rlframe_plugins.rollouts.common import StopStrings

__all__ = ["Rows", "Running"]

_NEVER = -1


@dataclass(eq=False)
class Running:
    """A request on its way: what it has drawn when it is not in a row."""

    request: Request
    seed: int
    stop_ids: tuple[int, ...]
    strings: StopStrings | None
    limit: int
    """Longest response, tokens."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    row: int = -1
    prefilled: int = -1
    """Weight version of the prompt's keys in the cache."""
    hidden: Any = None
    """State (hidden, 1) of the prompt's last token, for siblings that enter later."""

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and what was drawn before it left a row."""
        return self.request.prompt_ids + tuple(self.tokens)

    @property
    def need(self) -> int:
        """Tokens of cache that it may fill."""
        return len(self.request.prompt_ids) + self.limit

    def completion(self, reason: FinishReason) -> Completion:
        """What its ``generate`` returns."""
        return Completion(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), reason)


class Rows:
    """Rows 0 to ``len`` are running. Arrays are (capacity,) or (capacity, longest response)."""

    def __init__(self) -> None:
        self.sequences: list[Running] = []
        self._size = (0, 0, 1)
        self._allocate(16, 64, 1)

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Running) -> None:
        """Put a sequence, with its context in the cache, into the next row."""
        row, drawn = len(self.sequences), len(sequence.tokens)
        rows, longest, stops = self._size
        if row >= rows or sequence.limit > longest or len(sequence.stop_ids) > stops:
            wanted = (max(rows, 2 * row), max(longest, sequence.limit))
            self._allocate(*wanted, max(stops, len(sequence.stop_ids)))
        sequence.row = row
        self.sequences.append(sequence)
        self.position[row] = len(sequence.request.prompt_ids) + drawn
        self.count[row] = drawn
        self.limit[row] = sequence.limit
        self.minimum[row] = sequence.request.sampling.min_new_tokens
        self.seed[row] = sequence.seed
        self.stops[row] = _NEVER
        self.stops[row, : len(sequence.stop_ids)] = sequence.stop_ids
        self.watched[row] = sequence.strings is not None
        self.tokens[row, :drawn] = sequence.tokens
        self.logprobs[row, :drawn] = sequence.logprobs
        self.versions[row, :drawn] = sequence.versions

    def record(
        self,
        span: slice,
        tokens: NDArray[np.int64],
        logprobs: NDArray[np.float32],
        version: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Append one token to each row of ``span``: the rows that end, and which by a stop."""
        rows = np.arange(span.start, span.stop)
        count = self.count[span]
        self.tokens[rows, count] = tokens
        self.logprobs[rows, count] = logprobs
        self.versions[rows, count] = version
        self.last[span] = tokens
        count += 1
        enough = count >= self.minimum[span]
        stopped = (self.stops[span] == tokens[:, None]).any(1) & enough
        if self.watched[span].any():
            for row in rows[self.watched[span] & enough & ~stopped]:
                strings = self.sequences[row].strings
                drawn = self.tokens[row, : self.count[row]].tolist()
                stopped[row - span.start] = strings is not None and strings.completed_by_last(drawn)
        ended = stopped | (count >= self.limit[span])
        return rows[ended], stopped[ended]

    def store(self, row: int) -> Running:
        """Copy what a row has drawn into its sequence."""
        sequence, drawn = self.sequences[row], int(self.count[row])
        sequence.tokens = self.tokens[row, :drawn].tolist()
        sequence.logprobs = self.logprobs[row, :drawn].tolist()
        sequence.versions = self.versions[row, :drawn].tolist()
        return sequence

    def remove(self, row: int) -> int:
        """Free a row by moving the last one into it; returns the row that moved (or ``row``)."""
        last = len(self.sequences) - 1
        self.sequences[row].row = -1
        self.sequences[row].hidden = None
        if row != last:
            for array in self._arrays():
                array[row] = array[last]
            self.sequences[row] = self.sequences[last]
            self.sequences[row].row = row
        self.sequences.pop()
        return last

    def banned(self, span: slice) -> tuple[list[int], list[int]]:
        """Token ids and columns of end tokens that may not be drawn yet."""
        ids: list[int] = []
        columns: list[int] = []
        for column in np.flatnonzero(self.count[span] < self.minimum[span]).tolist():
            stops: Sequence[int] = self.sequences[span.start + column].stop_ids
            ids += stops
            columns += [column] * len(stops)
        return ids, columns

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            self.position,
            self.count,
            self.limit,
            self.minimum,
            self.seed,
            self.last,
            self.watched,
            self.stops,
            self.tokens,
            self.logprobs,
            self.versions,
        )

    def _allocate(self, rows: int, longest: int, stops: int) -> None:
        old = self._arrays() if self._size[0] else ()
        self._size = (rows, longest, stops)
        self.position = np.zeros(rows, np.int64)
        self.count = np.zeros(rows, np.int64)
        self.limit = np.zeros(rows, np.int64)
        self.minimum = np.zeros(rows, np.int64)
        self.seed = np.zeros(rows, np.uint64)
        self.last = np.zeros(rows, np.int64)
        self.watched = np.zeros(rows, np.bool_)
        self.stops = np.full((rows, stops), _NEVER, np.int64)
        self.tokens = np.zeros((rows, longest), np.int64)
        self.logprobs = np.zeros((rows, longest), np.float32)
        self.versions = np.zeros((rows, longest), np.int32)
        for before, now in zip(old, self._arrays(), strict=False):
            now[tuple(slice(n) for n in before.shape)] = before

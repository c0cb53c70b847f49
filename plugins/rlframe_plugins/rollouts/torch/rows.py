"""The state of the running sequences, one row each, as arrays that a step updates at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.requests import Completion, FinishReason, Request
from rlframe.serving import StopStrings
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, blocks_for

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
    blocks: list[int] = field(default_factory=list)
    """Of the cache, in its order, while it is in a row."""
    start: int = 0
    """Tokens of its context that the cache had when it entered."""
    entered: int = -1
    """Number of its last entry into a row."""
    pure: bool = False
    """Whether the present weights alone computed its keys and values."""
    hidden: Any = None
    """State (hidden, 1) of the prompt's last token, for siblings that enter later."""

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and what was drawn before it left a row."""
        return self.request.prompt_ids + tuple(self.tokens)

    @property
    def need(self) -> int:
        """Tokens that it may come to."""
        return len(self.request.prompt_ids) + self.limit

    def completion(self, reason: FinishReason) -> Completion:
        """What its ``generate`` returns."""
        return Completion(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), reason)


class Rows:
    """Rows 0 to ``len`` are running. Arrays are (capacity,) or (capacity, longest response)."""

    def __init__(self) -> None:
        self.sequences: list[Running] = []
        self.changes = 0
        """Times that a sequence came or went."""
        self._size = (0, 0, 1, 0)
        self._allocate(16, 64, 1, 4)

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Running) -> None:
        """Put a sequence, with its context in the cache, into the next row."""
        row, drawn = len(self.sequences), len(sequence.tokens)
        rows, *widths = self._size
        wanted = [sequence.limit, len(sequence.stop_ids), blocks_for(sequence.need)]
        if row >= rows or any(w > there for w, there in zip(wanted, widths, strict=True)):
            self._allocate(max(rows, 2 * row), *map(max, widths, wanted))
        sequence.row = row
        self.changes += 1
        self.sequences.append(sequence)
        self.position[row] = len(sequence.request.prompt_ids) + drawn
        self.count[row] = drawn
        self.limit[row] = sequence.limit
        self.minimum[row] = sequence.request.sampling.min_new_tokens
        self.seed[row] = sequence.seed
        self.stops[row] = _NEVER
        self.stops[row, : len(sequence.stop_ids)] = sequence.stop_ids
        self.watched[row] = sequence.strings is not None
        self.held[row] = len(sequence.blocks)
        self.tables[row] = 0
        self.tables[row, : len(sequence.blocks)] = sequence.blocks
        self.tokens[row, :drawn] = sequence.tokens
        self.logprobs[row, :drawn] = sequence.logprobs
        self.versions[row, :drawn] = sequence.versions

    def add_block(self, row: int, block: int) -> None:
        """Give a row room for more tokens."""
        self.sequences[row].blocks.append(block)
        self.tables[row, self.held[row]] = block
        self.held[row] += 1

    @property
    def span(self) -> int:
        """The highest number of a block in any row, plus one."""
        return int(self.tables[: len(self.sequences)].max(initial=-1)) + 1

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Blocks have other numbers now."""
        for row, sequence in enumerate(self.sequences):
            sequence.blocks = [numbers.get(block, block) for block in sequence.blocks]
            self.tables[row, : len(sequence.blocks)] = sequence.blocks

    def full(self) -> list[Running]:
        """Sequences whose next token has no room in their blocks."""
        count = len(self.sequences)
        where = np.flatnonzero(self.position[:count] >= self.held[:count] * BLOCK_TOKENS)
        return [self.sequences[row] for row in where.tolist()]

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

    def remove(self, row: int) -> None:
        """Free a row by moving the last one into it."""
        last = len(self.sequences) - 1
        self.changes += 1
        self.sequences[row].row = -1
        if row != last:
            for array in self._arrays():
                array[row] = array[last]
            self.sequences[row] = self.sequences[last]
            self.sequences[row].row = row
        self.sequences.pop()

    def clear(self) -> None:
        """Forget every sequence."""
        for sequence in self.sequences:
            sequence.row = -1
        self.sequences.clear()
        self.changes += 1

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
            self.held,
            self.tables,
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

    def _allocate(self, rows: int, longest: int, stops: int, blocks: int) -> None:
        old = self._arrays() if self._size[0] else ()
        self._size = (rows, longest, stops, blocks)
        self.position = np.zeros(rows, np.int64)
        self.held = np.zeros(rows, np.int64)
        self.tables = np.zeros((rows, blocks), np.int64)
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

"""A column at rest: ragged rows side by side in one numpy buffer, with their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.batching.opaque import bytes_of
from rlframe.errors import BatchError

__all__ = ["Packed", "ragged_index", "ragged_take"]

IntArray = NDArray[np.int64]

_LONG = 16
"""Elements of a mean row from which on rows are copied one by one instead of by an index."""


def ragged_index(starts: IntArray, lengths: IntArray) -> IntArray:
    """Positions of rows laid side by side: for row i ``starts[i] .. starts[i] + lengths[i]``.

    Shapes: (n,), (n,) -> (lengths.sum(),).
    """
    total = int(lengths.sum())
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(total, dtype=np.int64)


def ragged_take(values: NDArray[Any], starts: IntArray, lengths: IntArray) -> NDArray[Any]:
    """A copy of the rows ``values[starts[i] : starts[i] + lengths[i]]``, side by side.

    Shapes: (t, ...), (n,), (n,) -> (lengths.sum(), ...).
    """
    if len(lengths) and lengths.sum() >= _LONG * len(lengths):
        ends = (starts + lengths).tolist()
        return np.concatenate([values[a:b] for a, b in zip(starts.tolist(), ends, strict=True)])
    return values[ragged_index(starts, lengths)]


@dataclass(frozen=True)
class Packed:
    """Rows of one column.

    ``values``: (n, ...) when ``lengths`` is None, else (lengths.sum(), ...) with the n rows side by
    side; ``lengths``: (n,) int64, in tokens.
    """

    values: NDArray[Any]
    lengths: IntArray | None = None

    def __len__(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers; of opaque rows what they hold."""
        return bytes_of(self.values) + (0 if self.lengths is None else int(self.lengths.nbytes))

    def take(self, rows: IntArray) -> Packed:
        """The given rows, in the given order: (m,) -> m rows."""
        if self.lengths is None:
            return Packed(self.values[rows])
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[rows]
        return Packed(ragged_take(self.values, starts[rows], lengths), lengths)

    def rows(self) -> list[NDArray[Any]]:
        """One array a row (views)."""
        if self.lengths is None:
            return list(self.values)
        ends = np.cumsum(self.lengths)
        begins = (ends - self.lengths).tolist()
        return [self.values[a:b] for a, b in zip(begins, ends.tolist(), strict=True)]

    def padded(self, *, left: bool = False) -> NDArray[Any]:
        """Rows padded with zeros to the longest: (n, W, ...)."""
        if self.lengths is None:
            return self.values
        width = int(self.lengths.max(initial=0))
        out = np.zeros((len(self.lengths), width, *self.values.shape[1:]), self.values.dtype)
        positions = np.arange(width)
        inside = (
            positions >= width - self.lengths[:, None]
            if left
            else positions < self.lengths[:, None]
        )
        out[inside] = self.values
        return out

    @classmethod
    def from_padded(
        cls, values: NDArray[Any], lengths: IntArray | None, *, left: bool = False
    ) -> Packed:
        """From (n, W, ...) and the number of used slots of each row (at its end if ``left``).

        Raises BatchError when a row is longer than W or the numbers of rows differ.
        """
        if lengths is None:
            return cls(np.ascontiguousarray(values))
        if (
            values.ndim < 2
            or len(values) != len(lengths)
            or lengths.max(initial=0) > values.shape[1]
        ):
            raise BatchError(
                f"padded data of shape {values.shape} for {len(lengths)} rows, the longest of "
                f"{int(lengths.max(initial=0))}"
            )
        width = values.shape[1]
        positions = np.arange(width)
        inside = positions >= width - lengths[:, None] if left else positions < lengths[:, None]
        return cls(values[inside], np.asarray(lengths, np.int64))

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: str) -> Packed:
        """From one sequence a row."""
        arrays = [np.asarray(row, dtype) for row in rows]
        lengths = np.fromiter((len(a) for a in arrays), np.int64, len(arrays))
        filled = [a for a in arrays if len(a)]
        return cls(np.concatenate(filled) if filled else np.zeros(0, dtype), lengths)

    @classmethod
    def concat(cls, parts: Sequence[Packed], order: IntArray | None = None) -> Packed:
        """Several blocks of one column, one after the other; ``order`` (n,) picks rows of that."""
        if len(parts) == 1:
            return parts[0] if order is None else parts[0].take(order)
        ragged = [p.lengths for p in parts if p.lengths is not None]
        lengths = np.concatenate(ragged) if ragged else None
        if order is None:
            return cls(np.concatenate([p.values for p in parts]), lengths)
        if lengths is None or not len(order) or lengths.sum() < _LONG * len(lengths):
            return cls.concat(parts).take(order)
        rows = [row for part in parts for row in part.rows()]
        return cls(np.concatenate([rows[i] for i in order.tolist()]), lengths[order])

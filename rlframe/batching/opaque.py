"""Opaque rows (texts, messages, images): what they weigh, and rows that can be read alone."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PickledRows", "bytes_of"]

_NUMBER = 8
"""Bytes of a number among opaque values."""


def bytes_of(values: NDArray[Any]) -> int:
    """Bytes that the elements of an array hold; those of objects are looked up in the objects.

    A text counts as UTF-8, a container as what is in it; an object that occurs several times counts
    once. Nothing is pickled.
    """
    if values.dtype != object:
        return int(values.nbytes)
    total, left, seen = 0, list(values.ravel()), set[int]()
    while left:
        value = left.pop()
        if value is None or isinstance(value, bool | int | float):
            total += _NUMBER
        elif id(value) not in seen:
            seen.add(id(value))
            size, inside = _held(value)
            total += size
            left += inside
    return total


def _held(value: Any) -> tuple[int, Sequence[Any]]:
    """Bytes of an object itself, and what is in it."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")), ()
    if isinstance(value, bytes | bytearray):
        return len(value), ()
    if isinstance(getattr(value, "nbytes", None), int):
        return int(value.nbytes), ()
    if isinstance(value, Mapping):
        return 0, [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return 0, list(value)
    if hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        return 0, [vars(value)]
    return sys.getsizeof(value), ()


@dataclass(frozen=True)
class PickledRows:
    """Rows as pickles side by side, so that reading some makes no object of the others.

    ``data`` (bytes,) uint8; ``spans`` (n, 2) int64: row i is ``data[spans[i, 0] : spans[i, 1]]``.
    Rows that are one object share their bytes, and are one object again when read together.
    """

    data: NDArray[np.uint8]
    spans: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[Any]) -> PickledRows:
        """Pickle the rows of an opaque column, (n,) objects."""
        parts: list[bytes] = []
        known: dict[int, tuple[int, int]] = {}
        spans = np.zeros((len(values), 2), np.int64)
        end = 0
        for row, value in enumerate(values):
            if id(value) not in known:
                parts.append(_pickled(value))
                known[id(value)] = (end, end + len(parts[-1]))
                end += len(parts[-1])
            spans[row] = known[id(value)]
        return cls(np.frombuffer(bytearray().join(parts), np.uint8), spans)

    def rows(self, wanted: NDArray[np.int64]) -> NDArray[Any]:
        """The given rows, (m,) -> (m,) objects."""
        made: dict[int, Any] = {}
        out = np.empty(len(wanted), object)
        for place, (begin, end) in enumerate(self.spans[wanted].tolist()):
            if begin not in made:
                made[begin] = pickle.loads(self.data[begin:end].data)
            out[place] = made[begin]
        return out

    def bytes_of(self, wanted: NDArray[np.int64]) -> int:
        """Bytes that are read for the given rows, (m,); of rows that share them once."""
        spans = np.unique(self.spans[wanted], axis=0)
        return int((spans[:, 1] - spans[:, 0]).sum())


def _pickled(value: Any) -> bytes:
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return pickle.dumps(value, protocol=5)
    import cloudpickle

    return bytes(cloudpickle.dumps(value))

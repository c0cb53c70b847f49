"""Tensors into files and memory and out of it, in runs that stay in the cache while checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlframe_plugins.transports.checksum import BLOCK, checksum

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Bytes", "bytes_of", "fill", "read_file", "read_memory", "write_file"]

Bytes = NDArray[np.uint8]
_RUN = 8 * BLOCK
"""Bytes that are moved and checked at once."""


def bytes_of(tensor: Tensor) -> Bytes:
    """The memory of a contiguous tensor on the CPU; no copy."""
    import torch

    flat: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def fill(into: Bytes, tensor: Tensor, kind: torch.dtype) -> int:
    """A tensor's elements, row by row and as ``kind``, into memory; their checksum."""
    import torch

    flat = tensor.detach().reshape(-1)  # a view where the tensor is contiguous
    if flat.dtype == kind and flat.device.type == "cpu":
        return read_memory(bytes_of(flat), into)
    there = torch.from_numpy(into).view(kind)
    value, step = 0, _RUN // kind.itemsize
    for start in range(0, len(flat), step):
        there[start : start + step].copy_(flat[start : start + step])
        value = checksum(into[start * kind.itemsize : (start + step) * kind.itemsize], value)
    return value


def write_file(file: int, at: int, data: Bytes) -> None:
    """Write bytes at an offset."""
    for start, run in _runs(data):
        left = run.data
        while len(left):
            done = os.pwrite(file, left, at + start + len(run) - len(left))
            left = left[done:]


def read_file(file: int, at: int, into: Bytes) -> int:
    """Fill memory from an offset; the checksum. What a short file lacks stays as it was."""
    value = 0
    for start, run in _runs(into):
        left: Any = run.data
        while len(left):
            done = os.preadv(file, [left], at + start + len(run) - len(left))
            if not done:
                break
            left = left[done:]
        value = checksum(run, value)
    return value


def read_memory(source: Bytes, into: Bytes) -> int:
    """Fill memory from other memory, as long; the checksum."""
    value = 0
    for start, run in _runs(into):
        np.copyto(run, source[start : start + len(run)])
        value = checksum(run, value)
    return value


def _runs(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    for start in range(0, len(data), _RUN):
        yield start, data[start : start + _RUN]

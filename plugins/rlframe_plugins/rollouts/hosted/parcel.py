"""Tensors handed to another process of this machine, through memory that has no name."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe import RolloutError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Entry", "Parcel", "opened_parcel"]

_ALIGNED = 64

Entry = tuple[str, str, tuple[int, ...], int]
"""A tensor's name, dtype ("float32"), shape, and where it starts in the memory, bytes."""


class Parcel:
    """Copies of tensors that others may map while this object is open.

    ``path`` and ``entries`` are what they need: strings, numbers and tuples alone.
    """

    def __init__(self, tensors: Mapping[str, Tensor], folder: str = "") -> None:
        import torch

        self.entries, size = _placed(tensors)
        self._descriptor, self.path, self._named = _memory(folder)
        os.ftruncate(self._descriptor, max(size, 1))
        if not tensors:
            return
        with mmap.mmap(self._descriptor, size) as memory:
            for name, dtype, shape, start in self.entries:
                tensor = tensors[name].detach()
                if not tensor.numel():
                    continue
                kind = getattr(torch, dtype)
                room = torch.frombuffer(memory, dtype=kind, count=tensor.numel(), offset=start)
                room.view(shape).copy_(tensor)
                del room

    def __enter__(self) -> Parcel:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; others keep what they have mapped."""
        os.close(self._descriptor)
        if self._named:
            Path(self.path).unlink(missing_ok=True)


def opened_parcel(path: str, entries: list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, views of the other process's memory. Raises RolloutError.

    A tensor must not be written to, nor used after the parcel is closed over there.
    """
    import torch

    try:
        with open(path, "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=_READ_WRITE)
    except OSError as error:
        raise RolloutError(f"weights at {path} cannot be read here: {error}") from error
    for name, dtype, shape, start in entries:
        kind, count = getattr(torch, dtype), math.prod(shape)
        if not count:
            yield name, torch.empty(tuple(shape), dtype=kind)
            continue
        flat = torch.frombuffer(memory, dtype=kind, count=count, offset=start)
        yield name, flat.view(tuple(shape))


_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
"""Private and writable: torch warns of memory that it could not write."""


def _placed(tensors: Mapping[str, Tensor]) -> tuple[tuple[Entry, ...], int]:
    entries: list[Entry] = []
    at = 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append((name, dtype, tuple(tensor.shape), at))
        size = tensor.numel() * tensor.element_size()
        at += math.ceil(size / _ALIGNED) * _ALIGNED
    return tuple(entries), at


def _memory(folder: str) -> tuple[int, str, bool]:
    """A descriptor, the path by which others open it, and whether that is a file to remove."""
    if not folder and hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("rlframe-weights")
        return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}", False
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="rlframe-weights-", dir=folder or None)
    return descriptor, path, True

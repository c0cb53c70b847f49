"""Memory without a name that another process of the machine can map: it ends with its owner."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np

from rlframe_plugins.transports.copying import Bytes

__all__ = ["MemoryFile", "forget", "forget_all", "has_memory_files", "mapped", "file_of"]

Owner = tuple[str, int]
"""A transport's key and a rank."""

_owned: dict[Owner, list[MemoryFile]] = {}
_seen: dict[Owner, dict[str, tuple[int, Bytes]]] = {}
"""What a replica has mapped of others: by path the file's number and its bytes."""


class MemoryFile:
    """One that this process owns; ``path`` is where others of the machine open it."""

    def __init__(self, name: str) -> None:
        self._descriptor = os.memfd_create(f"rlframe-{name}")
        self._bytes: Bytes = np.zeros(0, np.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def room(self, size: int) -> Bytes:
        """Its first bytes, writable; pages that it had before are there again."""
        if len(self._bytes) < size:
            os.ftruncate(self._descriptor, size)
            self._bytes = np.frombuffer(mmap.mmap(self._descriptor, size), np.uint8)
        return self._bytes[:size]

    def close(self) -> None:
        """Let it go; others keep what they have mapped."""
        self._bytes = np.zeros(0, np.uint8)
        os.close(self._descriptor)


def has_memory_files() -> bool:
    """Whether this system has them."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def file_of(owner: Owner, number: int) -> MemoryFile:
    """The n-th file of a rank, made at the first use."""
    files = _owned.setdefault(owner, [])
    while len(files) <= number:
        files.append(MemoryFile(f"r{owner[1]}-{len(files)}"))
    return files[number]


def mapped(owner: Owner, path: str, size: int) -> Bytes:
    """The first bytes of another process's file, read-only, kept mapped. Raises OSError."""
    known = _seen.setdefault(owner, {})
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        if stat.st_size < size:
            raise OSError(f"it has {stat.st_size} bytes instead of {size}")
        number, found = known.get(path, (0, np.zeros(0, np.uint8)))
        if number != stat.st_ino or len(found) < size:
            memory = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            found = np.frombuffer(memory, np.uint8)
            known[path] = (stat.st_ino, found)
    return found[:size]


def forget(owner: Owner) -> None:
    """Let go of what a rank has."""
    _seen.pop(owner, None)
    for file in _owned.pop(owner, []):
        with contextlib.suppress(OSError):
            file.close()


def forget_all(key: str) -> None:
    """The same for every rank of this process."""
    for owner in [one for one in (*_owned, *_seen) if one[0] == key]:
        forget(owner)

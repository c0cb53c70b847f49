"""Files that are whole or not there, whenever the machine stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["files_below", "replace_text", "sync_directory", "sync_file"]


def sync_file(path: Path) -> None:
    """Wait until a file's content is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until a directory's names are on disk; a file system that cannot is left alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a file by way of a neighbour and a rename: readers see the old text or the new."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def files_below(directory: Path) -> Iterator[Path]:
    """Every file in a directory and its subdirectories, sorted."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file())

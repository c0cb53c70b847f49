"""The folder that a program wrote, however it looks."""

from __future__ import annotations

import os
import secrets
import stat

__all__ = ["remove_tree", "written_bytes"]

_MOST_FILES, _LONGEST_PATH = 10_000, 1000


def written_bytes(folder: str) -> float:
    """Size of all files below; infinite for more than 10,000 or very deep folders."""
    total, seen, waiting = 0.0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    total += entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:  # it went away, or is too deep or closed to be read
            continue
        if seen > _MOST_FILES or any(len(path) > _LONGEST_PATH for path in waiting[-1:]):
            return float("inf")
    return total


def remove_tree(folder: str) -> None:
    """Remove a folder of any depth and any permissions; follows no link."""
    serial, unguessed = 0, secrets.token_hex(8)
    os.chmod(folder, stat.S_IRWXU)
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                continue
            os.chmod(path, stat.S_IRWXU)
            for inner in os.listdir(path):
                lower, serial = os.path.join(path, inner), serial + 1
                if stat.S_ISDIR(os.lstat(lower).st_mode):
                    os.chmod(lower, stat.S_IRWXU)
                os.rename(lower, os.path.join(folder, f"{unguessed}-{serial}"))
            os.rmdir(path)
    os.rmdir(folder)

"""``metrics.jsonl`` and ``samples.jsonl`` in the run's folder: one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlframe import Config
from rlframe.interfaces.loop import Logger, Metrics

__all__ = ["JsonlLogger"]

_METRICS, _SAMPLES = "metrics.jsonl", "samples.jsonl"


class JsonlLogger(Logger):
    """Each line has ``step`` first; figures that are not finite are null.

    A line is in the file when its step is done. After a resume the entries of later steps, and a
    line that was cut off, are gone before anything is added.
    """

    def __init__(self, config: None = None) -> None:
        super().__init__(config)
        self._files: dict[str, IO[str]] = {}

    def start(self, run_dir: str, config: Config, total_steps: int, first_step: int) -> None:
        """See :class:`Logger`."""
        for name in (_METRICS, _SAMPLES):
            path = Path(run_dir) / name
            _drop_later(path, first_step)
            self._files[name] = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Metrics) -> None:
        """See :class:`Logger`."""
        self._write(_METRICS, {"step": step, **metrics})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`Logger`."""
        for row in rows:
            self._write(_SAMPLES, {"step": step, **row})

    def close(self) -> None:
        """See :class:`Logger`."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _write(self, name: str, entry: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(json.dumps({k: _plain(v) for k, v in entry.items()}, allow_nan=False) + "\n")
        file.flush()


def _plain(value: Any) -> Any:
    """A JSON value: numbers of numpy and torch become Python's, NaN and infinities None."""
    if hasattr(value, "item") and callable(value.item):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | None) else str(value)


def _drop_later(path: Path, done: int) -> None:
    """Keep the whole lines of steps up to ``done``; written beside and renamed."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    cut = lines.pop()
    kept = [line for line in lines if _belongs(line, done)]
    if len(kept) == len(lines) and not cut:
        return
    fresh = path.with_name(f".{path.name}.tmp")
    with fresh.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _belongs(line: bytes, done: int) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry["step"] <= done

"""What a run's folder holds, as far as it goes: a half-written or older run is read with notes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError, SnapshotError
from rlframe.recording.files import CONFIG, METRICS, PLACEMENT, SAMPLES, SUMMARY, TOKENS
from rlframe.timeline import Written, read_timeline

__all__ = ["RunRecord", "Series", "name_apart", "read_run"]

_MANIFEST = "manifest.json"
_APART = ("seed", "run", "steps", "logger", "callback")
"""Sections of a config in which repetitions of one experiment may differ."""


@dataclass(frozen=True)
class Series:
    """A metric over the steps at which it was logged; what was not finite is left out."""

    steps: list[int]
    values: list[float]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class RunRecord:
    """Everything that was found of a run. ``notes`` say what was not, and why."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Figures by step, in order; each has ``step``."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    tokens: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of ``tokens.jsonl`` by step and group."""
    spans: list[Written] = field(default_factory=list)
    placement: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    alive: bool = False
    """Whether a process holds the run's lock."""

    @property
    def status(self) -> str:
        """``finished``, ``stopped: ...``, ``failed: ...``, ``running``, ``ended without a word``.

        The last is that of a run whose process is gone and wrote no summary.
        """
        if self.alive:
            return "running"
        told = str(self.summary.get("status", "running"))
        return "ended without a word" if told == "running" else told

    @property
    def steps(self) -> int:
        """Steps that were logged."""
        return max((int(row["step"]) for row in self.rows), default=0)

    @property
    def seed(self) -> str:
        """The seed, or empty where no config was found."""
        return str(self.config.get("seed", ""))

    def option(self, *path: str) -> str:
        """A value of the config as text; empty where there is none."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return "" if value is None else str(value)

    @cached_property
    def experiment(self) -> str:
        """What runs of one experiment that differ by their seed have in common."""
        kept = {key: value for key, value in self.config.items() if key not in _APART}
        return json.dumps(kept, sort_keys=True) if kept else str(self.path)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that was logged, in the order of first sight."""
        return tuple(dict.fromkeys(n for row in self.rows for n in row if n != "step"))

    def series(self, metric: str) -> Series:
        """A metric's values; empty where it was not logged."""
        kept = [(int(r["step"]), r[metric]) for r in self.rows if _is_number(r.get(metric))]
        return Series([step for step, _ in kept], [float(value) for _, value in kept])

    def holes(self, metric: str) -> int:
        """At how many steps the metric was NaN or infinite."""
        return sum(metric in row and row[metric] is None for row in self.rows)


def read_run(path: str | Path) -> RunRecord:
    """Read a run, given its folder or a snapshot in it.

    Raises ConfigError where there is no such folder, or nothing of a run in it.
    """
    folder = Path(path).expanduser()
    if (folder / _MANIFEST).is_file():
        folder = folder.resolve().parent.parent
    if not folder.is_dir():
        raise ConfigError(f"'{path}' is no folder: name one that rlframe fit wrote")
    files = (CONFIG, METRICS, SUMMARY)
    if not any((folder / name).is_file() for name in files):
        inside = sorted(one.parent.name for one in folder.glob(f"*/{CONFIG}"))[:3]
        hint = f" There are runs in it: {', '.join(inside)}." if inside else ""
        raise ConfigError(f"'{path}' holds no run (none of {', '.join(files)}).{hint}")
    run = RunRecord(folder, folder.resolve().name)
    run.config = _object(run, CONFIG, "no curves are told apart by their options")
    run.summary = _object(run, SUMMARY, "the run is not over, or was killed")
    run.placement = _object(run, PLACEMENT, "no pools and meshes are shown")
    run.rows = _merged(_lines(run, METRICS, "no curves: the run had no logger jsonl, or no step"))
    run.samples = list(_lines(run, SAMPLES, "no samples: run.samples_every is 0, or no step was"))
    for row in _lines(run, TOKENS, "no tokens are coloured"):
        _keep_token_row(run, row)
    try:
        run.spans = read_timeline(folder)
    except (SnapshotError, OSError, UnicodeDecodeError) as error:
        run.notes.append(f"timeline: {error}")
    run.alive = _is_locked(folder)
    return run


def _object(run: RunRecord, name: str, without: str) -> dict[str, Any]:
    path = run.path / name
    if not path.is_file():
        run.notes.append(f"{name} is not there: {without}")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        run.notes.append(f"{name} cannot be read ({error}): {without}")
        return {}
    if isinstance(value, dict):
        return value
    run.notes.append(f"{name} holds no object: {without}")
    return {}


def _lines(run: RunRecord, name: str, without: str) -> Iterator[dict[str, Any]]:
    """Whole lines that have a step; the number of the others is noted."""
    path, broken = run.path / name, 0
    if not path.is_file():
        run.notes.append(f"{name} is not there: {without}")
        return
    try:
        body = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        run.notes.append(f"{name} cannot be read ({error}): {without}")
        return
    # Not splitlines: texts may hold other ends of lines.
    for line in body.split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row
        else:
            broken += 1
    if broken:
        lines = "1 line" if broken == 1 else f"{broken} lines"
        run.notes.append(f"{name}: {lines} cut off or damaged, and left out")


def _merged(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a step: validations may stand in lines of their own."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["step"], {}).update(row)
    return [found[step] for step in sorted(found)]


def _keep_token_row(run: RunRecord, row: dict[str, Any]) -> None:
    """The later line of a step, episode and row holds."""
    if not isinstance(row.get("group_id"), int) or not isinstance(row.get("tokens"), list):
        return
    known = run.tokens.setdefault((row["step"], row["group_id"]), [])
    place = row.get("row", 0)
    known[:] = [one for one in known if one.get("row", 0) != place] + [row]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_locked(folder: Path) -> bool:
    """Whether a process on this machine holds the run's lock; nothing is changed."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def name_apart(runs: Sequence[RunRecord]) -> None:
    """Give runs whose folders are called alike their parents' names too."""
    names = [run.name for run in runs]
    for run, name in zip(runs, names, strict=True):
        if names.count(name) > 1:
            run.name = f"{run.path.resolve().parent.name}/{name}"

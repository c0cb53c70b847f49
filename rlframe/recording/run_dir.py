"""The folder of a run: made anew under a name of its own, or found again to go on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError, SnapshotError
from rlframe.recording.files import CONFIG
from rlframe.snapshots.durable import replace_text
from rlframe.snapshots.manifest import MANIFEST
from rlframe.snapshots.snapshot import Snapshot, SnapshotStore, load_snapshot

if TYPE_CHECKING:
    from rlframe.config import Config

__all__ = ["RunPlace", "config_file", "open_run", "read_run_config"]

CONFIG_YAML = "config.yaml"
_FREE = ("run", "steps", "logger", "callback")
"""Sections in which two configs may differ and be of one run."""
_SHOWN = 4
"""Keys that are named where two configs differ."""


@dataclass
class RunPlace:
    """A run's folder, locked for this process, and the snapshot to go on from."""

    path: Path
    snapshot: Path | None = None

    def __post_init__(self) -> None:
        self._release = weakref.finalize(self, os.close, _lock(self.path))

    def close(self) -> None:
        """Give the folder free; an exception that is kept (a notebook's) would hold it for long."""
        self._release()


def open_run(
    config: Config,
    resume: str | Path | None = None,
    *,
    say: Callable[[str], object] = print,
    now: datetime | None = None,
) -> RunPlace:
    """Make a run's folder, or with ``resume`` (``auto``, a run, a snapshot) open one again.

    ``auto`` takes the newest run in ``run.dir`` of this name (or, unnamed, of this config) that has
    a snapshot, else a new one (a run of this name that ended before its first snapshot is renamed
    and kept), and tells ``say`` what it did. Leftovers of a killed process are removed. Raises
    ConfigError, SnapshotError.
    """
    if resume is None:
        return _create(config, now or datetime.now())
    if str(resume) != "auto":
        return _reopen(Path(resume), config)
    found = _newest(config)
    if found is None:
        say(
            f"--resume auto: no run of this config with a snapshot in {config.run.dir}; a new one"
            f"{_nearest_other(config)}"
        )
        _put_aside(config, say)
        return _create(config, now or datetime.now())
    place = RunPlace(found)
    snapshot = SnapshotStore(found, config.run.keep).latest(auto=True, say=say)
    assert snapshot is not None
    say(f"--resume auto: going on from {snapshot.path}")
    return _prepared(place, snapshot)


def config_file(path: str | Path) -> Path:
    """``config.yaml`` of a run, given the run or one of its snapshots. Raises ConfigError."""
    run_dir, _ = _split(Path(path))
    return run_dir / CONFIG_YAML


def read_run_config(path: str | Path) -> dict[str, Any]:
    """The config that a run was started with, as plain values. Raises SnapshotError."""
    run_dir, _ = _split(Path(path))
    try:
        value = json.loads((run_dir / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{run_dir / CONFIG} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SnapshotError(f"{run_dir / CONFIG} holds no object")
    return value


# --- a new run ------------------------------------------------------------------------------------


def _create(config: Config, now: datetime) -> RunPlace:
    parent = Path(config.run.dir).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _make_named(parent, config) if config.run.name else _make_timed(parent, config, now)
        place = RunPlace(path)
        _write_config(path, config)
    except OSError as error:
        raise ConfigError(
            f"no run can be written in '{parent}': {error.strerror}. Set run.dir"
        ) from error
    return place


def _make_named(parent: Path, config: Config) -> Path:
    path = parent / config.run.name
    if path.is_dir() and _is_unused(path):
        return path
    try:
        path.mkdir()
    except FileExistsError as error:
        raise ConfigError(
            f"{path} is there already: choose another run.name, or go on with --resume "
            f"{shlex.quote(str(path))}"
        ) from error
    return path


def _is_unused(path: Path) -> bool:
    return all(entry.name == ".lock" for entry in path.iterdir())


def _make_timed(parent: Path, config: Config, now: datetime) -> Path:
    """``NAME-YYYYmmdd-HHMMSS``, numbered where two runs start in one second."""
    word = (
        re.sub(r"[^A-Za-z0-9._-]+", "-", config.algo.name.rpartition(":")[2]).strip("-.") or "run"
    )
    base = f"{word}-{now:%Y%m%d-%H%M%S}"
    number = 1
    while True:
        path = parent / (base if number == 1 else f"{base}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            continue
        return path


def _write_config(path: Path, config: Config) -> None:
    import yaml

    values = config.to_dict()
    replace_text(path / CONFIG_YAML, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    replace_text(path / CONFIG, json.dumps(values, indent=1))


# --- an old one -----------------------------------------------------------------------------------


def _reopen(path: Path, config: Config) -> RunPlace:
    run_dir, chosen = _split(path)
    place = RunPlace(run_dir)
    if chosen is not None:
        return _prepared(place, load_snapshot(chosen))
    newest = SnapshotStore(run_dir, config.run.keep).latest()
    if newest is None:
        raise SnapshotError(f"{run_dir} has no snapshot to go on from: start a new run")
    return _prepared(place, newest)


def _prepared(place: RunPlace, snapshot: Snapshot) -> RunPlace:
    SnapshotStore(place.path).clean()
    place.snapshot = snapshot.path
    return place


def _split(path: Path) -> tuple[Path, Path | None]:
    """A run's folder, and the snapshot where the path is one. Raises ConfigError."""
    path = path.expanduser()
    if (path / MANIFEST).is_file():
        return path.resolve().parent.parent, path
    if (path / CONFIG).is_file():
        return path, None
    what = "is neither a run nor a snapshot" if path.exists() else "is not there"
    raise ConfigError(
        f"'{path}' {what}: name a folder that rlframe fit wrote, or one in its snapshots/"
    )


def _newest(config: Config) -> Path | None:
    """The newest run of this name or config that has a snapshot."""
    parent = Path(config.run.dir).expanduser()
    if config.run.name:
        named = parent / config.run.name
        return named if SnapshotStore(named).paths() else None
    wanted = _essence(config.to_dict())
    return next((p for p in _saved_runs(parent) if _essence(read_run_config(p)) == wanted), None)


def _saved_runs(parent: Path) -> list[Path]:
    """Every run that has a snapshot, the newest first."""
    runs = [p.parent for p in parent.glob(f"*/{CONFIG}") if SnapshotStore(p.parent).paths()]
    return sorted(runs, key=lambda p: ((p / CONFIG).stat().st_mtime_ns, p.name), reverse=True)


def _nearest_other(config: Config) -> str:
    """The newest run of another config and in what it differs; empty where there is none."""
    runs = [] if config.run.name else _saved_runs(Path(config.run.dir).expanduser())
    if not runs:
        return ""
    keys = _differences(_essence(read_run_config(runs[0])), _essence(config.to_dict()))
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f". The newest there, {runs[0].name}, differs in {', '.join(keys[:_SHOWN])}{more}"


def _differences(mine: Any, other: Any, path: str = "") -> list[str]:
    """Dotted keys in which two configs differ."""
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        keys = [*mine, *(key for key in other if key not in mine)]
        missing = object()
        return [
            one
            for key in keys
            for one in _differences(
                mine.get(key, missing), other.get(key, missing), f"{path}.{key}" if path else key
            )
        ]
    return [] if mine == other else [path]


def _put_aside(config: Config, say: Callable[[str], object]) -> None:
    """Free the name of a run that ended before its first snapshot. ConfigError if it runs."""
    path = Path(config.run.dir).expanduser() / config.run.name
    if not config.run.name or not path.is_dir() or _is_unused(path):
        return
    lock, number = _lock(path), 1
    try:
        while (aside := path.with_name(f"{path.name}.unsaved-{number}")).exists():
            number += 1
        path.rename(aside)
    except OSError as error:
        raise ConfigError(f"{path} has no snapshot and cannot be renamed: {error}") from error
    finally:
        os.close(lock)
    say(f"--resume auto: {path} ended before its first snapshot and is {aside} now")


def _essence(values: Mapping[str, Any]) -> Any:
    """What makes two configs one run, as JSON reads it back."""
    return json.loads(json.dumps({k: v for k, v in values.items() if k not in _FREE}))


def _lock(path: Path) -> int:
    """A descriptor that holds the run's lock until it is closed. Raises ConfigError."""
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"{path} is in use by another process: wait for it, or start a run of another run.name"
        ) from error
    except OSError:
        return descriptor
    return descriptor

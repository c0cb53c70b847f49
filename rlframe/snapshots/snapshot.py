"""Snapshots of a run: whole or not there, kept N deep, checked before use.

``RUN/snapshots/step-000010/`` holds ``state.json`` and ``state.safetensors``, one folder a model
role, and ``manifest.json``. It appears by a rename, when everything in it is on disk.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlframe.errors import SnapshotError
from rlframe.snapshots.codec import decode_state, encode_state
from rlframe.snapshots.durable import files_below, sync_directory, sync_file
from rlframe.snapshots.manifest import library_versions, verify, write_manifest
from rlframe.snapshots.rng import rng_state, set_rng_state

__all__ = [
    "OpenSnapshot",
    "Snapshot",
    "SnapshotStore",
    "decode_state",
    "encode_state",
    "load_snapshot",
    "rng_state",
    "set_rng_state",
]

_NAME = re.compile(r"step-(\d{6,})(?:\.(\d+))?")
_LEFTOVER = (".tmp-", ".del-")
_STATE, _TENSORS = "state.json", "state.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """One snapshot that was found whole; ``world`` is the number of ranks that wrote it.

    ``versions`` are those of the libraries that did.
    """

    path: Path
    step: int
    world: int
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> str:
        """What is said of libraries that are not those which wrote it; empty where all are."""
        here = library_versions()
        wrote = {name: v for name, v in self.versions.items() if here.get(name) != v}
        others = [f"{name} {v} (here {here.get(name, 'none')})" for name, v in wrote.items()]
        if not others:
            return ""
        return (
            f"{self.path} was written with {', '.join(others)}: the run goes on from the same "
            "state, and its numbers may differ in their last bits from here on"
        )

    def state(self) -> Any:
        """What was given to ``save`` as state. Raises SnapshotError."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            value = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
            tensors = load((self.path / _TENSORS).read_bytes())
        except (OSError, ValueError, SafetensorError) as error:
            raise SnapshotError(f"the state in {self.path} cannot be read: {error}") from error
        return decode_state(value, tensors)


def load_snapshot(path: Path) -> Snapshot:
    """A snapshot, every file checked. Raises SnapshotError naming the file that is wrong."""
    manifest = verify(path)
    return Snapshot(path, manifest.step, manifest.world, manifest.versions)


@dataclass(frozen=True)
class OpenSnapshot:
    """A snapshot that is being written: the models' parts go into ``path``."""

    store: SnapshotStore
    step: int
    world: int
    path: Path
    text: str
    tensors: Mapping[str, Any]

    def publish(self) -> Path:
        """Sum, sync and rename; then old ones are deleted. Raises SnapshotError."""
        return self.store._publish(self)

    @contextmanager
    def abandoned_on_error(self) -> Iterator[None]:
        """Whatever is raised inside removes it; what the disk refuses is a SnapshotError."""
        try:
            with self.store._refusals(self.step):
                yield
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise


class SnapshotStore:
    """The snapshots of one run; ``keep`` (at least 1) stay. Only one process may write."""

    def __init__(self, run_dir: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = Path(run_dir) / "snapshots"
        self.keep = keep

    def save(
        self, step: int, write_fn: Callable[[Path], object], state: Any, *, world: int = 1
    ) -> Path:
        """Write a snapshot, then delete those beyond ``keep`` or of later steps; returns its path.

        ``write_fn`` writes the models' files into the directory that it is given. Raises
        SnapshotError when the disk refuses; the older snapshots are untouched then.
        """
        fresh = self.begin(step, state, world=world)
        with fresh.abandoned_on_error():
            write_fn(fresh.path)
        return fresh.publish()

    def begin(self, step: int, state: Any, *, world: int = 1) -> OpenSnapshot:
        """A snapshot that is yet to be filled and published; ``state`` is copied now.

        Raises SnapshotError for a state that cannot be kept, or when the disk refuses.
        """
        value, tensors = encode_state(state)
        text = json.dumps(value)
        with self._refusals(step):
            self.directory.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix=f".tmp-{step:06d}-", dir=self.directory))
        return OpenSnapshot(self, step, world, path, text, tensors)

    def load(self, path: str | Path) -> Any:
        """The state in a snapshot, every file of which was checked. Raises SnapshotError."""
        return load_snapshot(Path(path)).state()

    def paths(self) -> list[Path]:
        """Every snapshot by step, the oldest first; not yet checked."""
        if not self.directory.is_dir():
            return []
        found = [(_order(path), path) for path in self.directory.iterdir()]
        return [path for order, path in sorted(f for f in found if f[0] is not None)]

    def latest(
        self, *, auto: bool = False, say: Callable[[str], object] | None = None
    ) -> Snapshot | None:
        """The newest snapshot that is whole, None where there is none.

        A damaged newest one is a SnapshotError, unless ``auto``: then ``say`` is told and the next
        older one is tried. Raises SnapshotError when all are damaged.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return load_snapshot(path)
            except SnapshotError as error:
                if not auto:
                    others = f": resume from {paths[-2]}" if len(paths) > 1 else ""
                    raise SnapshotError(
                        f"the newest snapshot is damaged: {error}. --resume auto takes the newest "
                        f"whole one{others}"
                    ) from error
                if say is not None:
                    say(f"snapshot {path.name} is damaged and passed over: {error}")
        if paths:
            raise SnapshotError(f"every snapshot in {self.directory} is damaged: start a new run")
        return None

    def clean(self) -> None:
        """Remove what a killed process left half written or half deleted."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.startswith(_LEFTOVER):
                    shutil.rmtree(path, ignore_errors=True)

    def drop_after(self, step: int) -> list[Path]:
        """Delete the snapshots of later steps: after a resume they are of another history."""
        later = [path for path in self.paths() if _step(path) > step]
        for path in reversed(later):
            self._delete(path)
        return later

    # --- inside -------------------------------------------------------------------------------

    @contextmanager
    def _refusals(self, step: int) -> Iterator[None]:
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError, SnapshotError) as error:
            raise SnapshotError(
                f"the snapshot of step {step} could not be written to {self.directory}: {error}. "
                "Older snapshots are untouched; free space there, or set run.dir"
            ) from error

    def _publish(self, fresh: OpenSnapshot) -> Path:
        with fresh.abandoned_on_error():
            _write_state(fresh.path, fresh.text, fresh.tensors)
            write_manifest(fresh.path, fresh.step, fresh.world)
            _sync_tree(fresh.path)
            final = self._free_name(fresh.step)
            fresh.path.chmod(0o755)
            fresh.path.rename(final)
            sync_directory(self.directory)
        try:
            self.drop_after(fresh.step)
            self._delete_old()
        except OSError as error:
            raise SnapshotError(
                f"{final} is saved, but an older snapshot could not be deleted: {error}"
            ) from error
        return final

    def _free_name(self, step: int) -> Path:
        """``step-000010``, or ``step-000010.1`` after that: nothing is overwritten."""
        taken = [o[1] for o in map(_order, self.paths()) if o is not None and o[0] == step]
        suffix = f".{max(taken) + 1}" if taken else ""
        return self.directory / f"step-{step:06d}{suffix}"

    def _delete_old(self) -> None:
        """Keep the newest ``keep`` steps; of a step that was saved twice only the later one."""
        kept: set[int] = set()
        for path in reversed(self.paths()):
            if _step(path) in kept or len(kept) >= self.keep:
                self._delete(path)
            else:
                kept.add(_step(path))

    def _delete(self, path: Path) -> None:
        """Rename first, so that a half-deleted snapshot is never taken for one."""
        hidden = Path(tempfile.mkdtemp(prefix=".del-", dir=self.directory))
        path.rename(hidden / path.name)
        shutil.rmtree(hidden, ignore_errors=True)


def _order(path: Path) -> tuple[int, int] | None:
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match and path.is_dir() else None


def _step(path: Path) -> int:
    order = _order(path)
    assert order is not None
    return order[0]


def _write_state(directory: Path, text: str, tensors: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    (directory / _STATE).write_text(text, encoding="utf-8")
    save_file(dict(tensors), directory / _TENSORS)


def _sync_tree(directory: Path) -> None:
    for path in files_below(directory):
        sync_file(path)
    for path in sorted(p for p in directory.rglob("*") if p.is_dir()):
        sync_directory(path)
    sync_directory(directory)

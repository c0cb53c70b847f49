"""Saving a run: at once, or beside its next steps. Never two snapshots at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.calling.background import BackgroundCall
from rlframe.timeline import CONTROLLER

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rlframe.orchestrator import Orchestrator
    from rlframe.recording.callbacks import CallbackList
    from rlframe.snapshots.snapshot import OpenSnapshot, SnapshotStore

__all__ = ["Saver"]


class Saver:
    """Writes snapshots, and knows which one is the last that is whole.

    In the background a snapshot goes three ways: the engines copy their state to the host and
    write the copies while the run goes on; after the next step they have ended, and a thread sums,
    syncs and publishes the files; what that raised, or the snapshot, is taken up after a later
    step, at the next snapshot, or at the end of the run.
    """

    def __init__(
        self, snapshots: SnapshotStore, callbacks: CallbackList, *, background: bool
    ) -> None:
        self._snapshots, self._callbacks, self._background = snapshots, callbacks, background
        self._writing: OpenSnapshot | None = None
        self._publishing: BackgroundCall[Path] | None = None
        self.step = -1
        """Step of the newest snapshot, or of the one that is on its way."""
        self.saved: Path | None = None
        """The last snapshot that is whole."""

    def paths(self) -> list[Path]:
        """Every snapshot that is whole, the oldest first."""
        return self._snapshots.paths()

    def save(self, run: Orchestrator, state: dict[str, Any], *, wait: bool) -> None:
        """Write a snapshot of ``state`` and of all trained roles; ``wait`` for it in any case.

        What the snapshot before it raised is raised here. Raises ``SnapshotError`` when the disk
        refuses, and what the engines raise.
        """
        self.finish(run)
        background = self._background and not wait
        with run.parts.timeline.log.span(CONTROLLER, "snapshot"):
            fresh = self._snapshots.begin(run.step, state)
            with fresh.abandoned_on_error():
                _call_roles(run, "begin_save" if background else "save", fresh.path)
            self.step, self._writing = run.step, fresh
            if not background:
                self._writing = None
                self._saved(run, fresh.publish())

    def look(self, run: Orchestrator) -> None:
        """Take up what was begun after an earlier step; raises what went wrong with it."""
        if self._writing is not None:
            fresh, self._writing = self._writing, None
            with fresh.abandoned_on_error():
                _call_roles(run, "end_save")
            self._publishing = BackgroundCall(fresh.publish, "rlframe-snapshot")
        elif self._publishing is not None and self._publishing.done:
            self._take(run)

    def finish(self, run: Orchestrator) -> None:
        """Wait for the snapshot that is on its way; raises what went wrong with it."""
        if self._writing is not None:
            self.look(run)
        if self._publishing is not None:
            self._take(run)

    def _take(self, run: Orchestrator) -> None:
        publishing, self._publishing = self._publishing, None
        assert publishing is not None
        self._saved(run, publishing.result())

    def _saved(self, run: Orchestrator, path: Path) -> None:
        self.saved = path
        self._callbacks.on_snapshot_saved(run, str(path))


def _call_roles(run: Orchestrator, method: str, directory: Path | None = None) -> None:
    """Call a method of every trained role at once, with a directory of its own each; wait for all.

    Raises the first role's failure when all have ended, so that nobody writes any more.
    """
    asked = []
    for role in run.algorithm.roles():
        if role.trained:
            given = [directory / role.name] if directory is not None else []
            for part in given:
                part.mkdir()
            asked.append(run.roles[role.name].call(method, *given))
    failed = [error for error in map(_failure, asked) if error is not None]
    if failed:
        raise failed[0]


def _failure(asked: Future[Any]) -> Exception | None:
    try:
        asked.result()
    except Exception as error:  # noqa: BLE001 - raised by the caller
        return error
    return None

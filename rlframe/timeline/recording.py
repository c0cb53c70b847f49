"""The timeline of a run while it goes on: the controller's own spans, and those of its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlframe.timeline.file import TimelineFile
from rlframe.timeline.spans import ProcessSpans, SpanLog, now

if TYPE_CHECKING:
    from rlframe.place import Place

__all__ = ["Timeline"]

_EVERY_S = 1.0
"""Workers are asked for their spans this often at most, seconds."""


class Timeline:
    """``processes`` gives what workers did since it was called before; ``file`` None: nothing."""

    def __init__(
        self,
        file: TimelineFile | None = None,
        processes: Callable[[], Sequence[ProcessSpans]] = tuple,
    ) -> None:
        self.log = SpanLog()
        """What the controller does."""
        self._file, self._processes = file, processes
        self._asked = 0.0

    @classmethod
    def of(cls, run_dir: Path, place: Place, megabytes: int) -> Timeline:
        """Of a run: at most so many MB are kept in its folder; 0 keeps nothing."""
        pools = place.placement.pool_of
        file = TimelineFile(run_dir, pools, megabytes * 10**6) if megabytes else None
        return cls(file, place.cluster.spans)

    def begin(self, step: int, version: int) -> None:
        """A life begins with this step and these weights."""
        if self._file is not None:
            self._file.begin()
            self._file.mark(step, version)

    def mark(self, step: int, version: int) -> None:
        """What is done from now on belongs to this step and these weights."""
        if self._file is not None:
            self._file.mark(step, version)

    def fetch(self, *, last: bool = False) -> str:
        """Write what was done since; ``last``: also where it was asked a moment ago.

        A line for people where that cannot be written any more: a run does not end for it.
        """
        if self._file is None or (now() - self._asked < _EVERY_S and not last):
            return ""
        self._asked = asked = now()
        try:
            self._file.write([self.log.take(), *self._processes()], asked)
            if last:
                self._file.close()
        except OSError as error:
            self._file = None
            return f"the timeline ends here, it cannot be written: {error}"
        return ""

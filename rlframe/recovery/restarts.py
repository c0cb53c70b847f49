"""After something broke: whether new workers may mend it, how long to wait, what was tried.

A run that restarts lives several lives in one driver, each built anew and gone on with from the
newest snapshot of the one before. ``RUN/restarts.jsonl`` keeps why.
"""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlframe.config import RunConfig
from rlframe.errors import RlframeError

__all__ = ["Broken", "Recovery", "Restart", "read_restarts"]

NAME = "restarts.jsonl"
_LONGEST_WAIT_S = 60.0
_REASON = 500
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class Restart:
    """One restart: ``step`` steps were done when ``reason`` came; ``snapshot`` "": from the start.

    ``waited_s`` is the pause before it; ``at`` the time (UTC).
    """

    step: int
    reason: str
    snapshot: str
    waited_s: float
    at: str


@dataclass(frozen=True)
class Broken:
    """How a life ended: its error, the steps that it had done, the snapshot to go on from."""

    error: Exception
    step: int
    snapshot: Path | None
    stopping: bool = False
    """The run had been asked to stop."""


class Recovery:
    """Decides about restarts of one driver. ``say`` takes a line for people."""

    def __init__(
        self,
        run_dir: Path,
        options: RunConfig,
        say: Callable[[str], object],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._run_dir, self._options = run_dir, options
        self._say, self._sleep = say, sleep
        self._done = self._in_a_row = 0
        self._last: Broken | None = None
        self.note = ""
        """Why this life began, for the log; empty in the first."""

    @property
    def may_restart(self) -> bool:
        """Whether any restart is left."""
        return self._done < self._options.max_restarts

    def after(self, broken: Broken) -> None:
        """Note a restart and wait for it, longer each time without progress.

        Raises the error where a restart is not due: it could not mend it, brought the same error
        at the same step before, or none is left.
        """
        error = broken.error
        if not self._mends(broken):
            raise error
        if not self.may_restart:
            if self._done:
                error.add_note(f"after {self._done} restarts (run.max_restarts)")
            raise error
        self._in_a_row = 1 + (self._in_a_row if self._stands_still(broken) else 0)
        wait = min(self._options.restart_wait_s * 2 ** (self._in_a_row - 1), _LONGEST_WAIT_S)
        self._done += 1
        self._last = Broken(_bare(error), broken.step, broken.snapshot)
        where = broken.snapshot.name if broken.snapshot else "the start"
        reason = str(error).splitlines()[0][:_REASON]
        count = f"restart {self._done} of {self._options.max_restarts}"
        self.note = f"{count}, from {where}, after: {reason}"
        self._say(f"rlframe: {reason}\nrlframe: {count} from {where} in {wait:g} s")
        _append(self._run_dir, Restart(broken.step, reason, _name(broken), wait, _now()))
        traceback.clear_frames(error.__traceback__)  # they hold the parts of the life that ended
        gc.collect()
        self._sleep(wait)

    def _mends(self, broken: Broken) -> bool:
        error = broken.error
        if broken.stopping or not isinstance(error, RlframeError) or not error.mendable:
            return False
        last = self._last
        again = last is not None and str(last.error) == str(error) and last.step == broken.step
        if again:
            error.add_note("the same came again after a restart, at the same step")
        return not again

    def _stands_still(self, broken: Broken) -> bool:
        return self._last is not None and self._last.snapshot == broken.snapshot


def read_restarts(run_dir: str | Path) -> list[dict[str, Any]]:
    """Every restart of a run, the earliest first; a line that was cut off is left out."""
    path = Path(run_dir) / NAME
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _append(run_dir: Path, restart: Restart) -> None:
    with (run_dir / NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(restart)) + "\n")


def _bare(error: Exception) -> Exception:
    """The error's text alone, without frames."""
    return RlframeError(str(error))


def _name(broken: Broken) -> str:
    return broken.snapshot.name if broken.snapshot else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

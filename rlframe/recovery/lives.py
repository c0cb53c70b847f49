"""The lives of a run in one driver: each builds its parts, goes on from a snapshot, and ends."""

from __future__ import annotations

import copy
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlframe.config import Config
from rlframe.errors import RlframeError, StuckError
from rlframe.recovery.restarts import Broken, Recovery, read_restarts
from rlframe.snapshots.rng import rng_state, set_rng_state
from rlframe.snapshots.snapshot import load_snapshot

if TYPE_CHECKING:
    from rlframe.build import Built
    from rlframe.host.host import PluginHost
    from rlframe.orchestrator import Orchestrator
    from rlframe.recording.run_dir import RunPlace
    from rlframe.snapshots.snapshot import Snapshot

__all__ = ["Stopped", "live"]


class Stopped(RlframeError):
    """The run was asked to stop by a signal; its state is saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.message, self.exit_code = message, exit_code

    def __str__(self) -> str:
        return self.message


def live(place: RunPlace, config: Config, host: PluginHost) -> None:
    """Run to the end, in as many lives as ``run.max_restarts`` allows.

    Raises ``Stopped`` after a signal, and the error of a life after which none follows.
    """
    recovery = Recovery(place.path, config.run, _say)
    first = _Beginning()
    while (broken := _life(place, config, host, recovery, first)) is not None:
        place.snapshot = broken.snapshot
        recovery.after(broken)
        del broken


class _Beginning:
    """State of the controller before the first step, for a run that restarts from there.

    What a user gave as an object is the same one in each life.
    """

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None

    def put_into(self, run: Orchestrator) -> None:
        """Note it in the first life, put it back in a later one."""
        if self._state is None:
            self._state = copy.deepcopy({"run": run.state_dict(), "rng": rng_state()})
            return
        run.load_state_dict(copy.deepcopy(self._state["run"]))
        set_rng_state(self._state["rng"])


def _life(
    place: RunPlace, config: Config, host: PluginHost, recovery: Recovery, first: _Beginning
) -> Broken | None:
    """One life; None: it came to its end. Everything that it started is ended with it."""
    built: Built | None = None
    try:
        built = _built(place, config, host)
        run = built.orchestrator
        run.parts.recorder.restarted(recovery.note, read_restarts(place.path))
        if place.snapshot is not None:
            _restore(built, load_snapshot(place.snapshot))
        elif config.run.max_restarts:
            first.put_into(run)
        with _stop_on_signals(run):
            run.fit()
    except Exception as error:
        if built is None:
            return Broken(error, _step_of(place), place.snapshot)
        if isinstance(error, StuckError):
            print(f"stacks of all workers:\n{built.cluster.stacks()}", file=sys.stderr, flush=True)
        run = built.orchestrator
        _close(built, error)
        saved = run.parts.recorder.saved or place.snapshot
        return Broken(error, run.step, saved, stopping=bool(run.stop_reason))
    except BaseException:
        if built is not None:
            built.close()
        raise
    built.close()
    _tell_of_signal(run, place)
    return None


def _close(built: Built, error: Exception) -> None:
    """End what is left of a life that broke; what fails at that does not hide the reason."""
    try:
        built.close()
    except Exception as second:  # noqa: BLE001 - told beside the first
        error.add_note(f"its parts could not all be closed: {type(second).__name__}: {second}")


def _built(place: RunPlace, config: Config, host: PluginHost) -> Built:
    from rlframe.place import find_place

    where = find_place(config, config.algo.load()(config.algo.config))
    from rlframe.build import build  # loads large libraries: a wrong placement is told before

    return build(config, host, place.path, where)


def _step_of(place: RunPlace) -> int:
    return load_snapshot(place.snapshot).step if place.snapshot is not None else 0


def _tell_of_signal(run: Orchestrator, place: RunPlace) -> None:
    reason = run.stop_reason
    if reason in _SIGNALS:
        raise Stopped(
            f"stopped by {reason} after step {run.step}; the state is saved. "
            f"Go on with: rlframe fit --resume {shlex.quote(str(place.path))}",
            128 + int(_SIGNALS[reason]),
        )


def _restore(built: Built, snapshot: Snapshot) -> None:
    """Put a snapshot's state into every part of a run."""
    run = built.orchestrator
    if snapshot.foreign:
        _say(snapshot.foreign)
    state = snapshot.state()
    for role in run.algorithm.roles():
        if role.trained:
            run.roles[role.name].call("load", snapshot.path / role.name).result()
    run.load_state_dict(state["run"])
    run.parts.recorder.restore(state["summary"])
    set_rng_state(state["rng"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_SIGNALS = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")}


@contextmanager
def _stop_on_signals(run: Orchestrator) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP ends the run after its step; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if run.stop_reason:
            raise KeyboardInterrupt
        run.stop_reason = signal.Signals(number).name
        text = f"{run.stop_reason}: stopping after this step and saving; once more stops at once"
        # Not from here: the signal may have come in the middle of a logger's own writing.
        threading.Thread(target=run.parts.recorder.message, args=(text,), daemon=True).start()

    before = {one: signal.signal(one, ask) for one in _SIGNALS.values()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

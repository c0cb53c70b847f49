"""Rollout replicas that were started again get the current weights while the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlframe.errors import RlframeError
from rlframe.interfaces.checkpoint import CheckpointEngine
from rlframe.interfaces.cluster import WorkerGroup

__all__ = ["Latecomers"]


class Latecomers:
    """Lets replicas join where trainers hold what was published: from a publish to an update.

    One that is ready in between is taken along by the next publish. ``tell`` takes a line for each
    replica that is lost or is back; it is called in the cluster's threads. Without a checkpoint
    engine there is nothing to do.
    """

    def __init__(
        self,
        checkpoint: CheckpointEngine | None = None,
        rollout: WorkerGroup | None = None,
        tell: Callable[[str], object] = print,
    ) -> None:
        self._checkpoint, self._rollout, self._tell = checkpoint, rollout, tell
        self._state = threading.Condition()
        self._published = self._over = False
        if checkpoint is not None and rollout is not None:
            rollout.watch(tell, self._join)

    def updating(self) -> None:
        """The trainers' weights are about to change; waits for a replica that joins just now."""
        with self._state:
            self._published = False

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Around a publish: after it replicas may join."""
        self.updating()
        yield
        with self._state:
            self._published = True
            self._state.notify_all()

    def close(self) -> None:
        """Let nobody join any more."""
        with self._state:
            self._over = True
            self._state.notify_all()

    def _join(self, who: str) -> None:
        """Called when a new worker is ready, in a thread that may wait."""
        assert self._checkpoint is not None
        assert self._rollout is not None
        with self._state:
            self._state.wait_for(lambda: self._published or self._over)
            if self._over:
                return
            try:
                if self._rollout.arrived:
                    self._checkpoint.join()
            except RlframeError as error:
                self._tell(f"{who} waits for the next weights, since it got none now: {error}")
                return
        self._tell(f"{who} is back, with the current weights")

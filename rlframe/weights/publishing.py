"""New weights for rollout engines, while generations run or not."""

from __future__ import annotations

from typing import Literal

from rlframe.interfaces.checkpoint import CheckpointEngine, SyncStats
from rlframe.interfaces.cluster import WorkerGroup

__all__ = ["Running", "publish_to"]

Running = Literal["none", "keep", "abort"]
"""What becomes of generations that go on: there are none; they wait and go on under new weights;
they end with what they have, and the Collector asks for the rest under the new weights."""


def publish_to(
    checkpoint: CheckpointEngine, rollout: WorkerGroup | None, version: int, running: Running
) -> SyncStats:
    """Publish a version; generations stop for it and go on after it, also where it fails."""
    if running == "none" or rollout is None:
        return checkpoint.publish(version)
    rollout.call("pause", running).result()
    try:
        return checkpoint.publish(version)
    finally:
        rollout.call("resume").result()

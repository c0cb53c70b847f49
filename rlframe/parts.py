"""What an Orchestrator is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlframe.algorithm import Algorithm
from rlframe.batching.columns import Schema
from rlframe.collecting.buffer import Buffer
from rlframe.collecting.client import CollectorClient
from rlframe.config import Config
from rlframe.data import PromptStream
from rlframe.interfaces.checkpoint import CheckpointEngine
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.transfer import CountedTransfer
from rlframe.recording.callbacks import CallbackList
from rlframe.timeline import Timeline

if TYPE_CHECKING:
    from rlframe.collecting.second_data import SecondData
    from rlframe.recording.record import Recorder

__all__ = ["Parts"]


@dataclass
class Parts:
    """Everything that an Orchestrator is made of, built from a config."""

    config: Config
    algorithm: Algorithm
    schema: Schema
    stream: PromptStream
    collector: CollectorClient
    roles: Mapping[str, WorkerGroup]
    transfer: CountedTransfer
    """What the controller reads through; workers and collectors have their own."""
    checkpoint: CheckpointEngine | None
    """None for offline methods, which have no rollout engine."""
    recorder: Recorder
    callbacks: CallbackList
    buffer: Buffer = field(default_factory=Buffer)
    second: SecondData | None = None
    rollout: WorkerGroup | None = None
    timeline: Timeline = field(default_factory=Timeline)

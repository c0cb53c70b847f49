"""Engines of known speed: a response takes so long, an update so long, whatever the machine does.

``rollout.name``: ``known_speed.py:KnownRollout``, ``model.engine``: ``known_speed.py:KnownModel``.
"""

from __future__ import annotations

import asyncio
import os
import time

from rlframe import Batch, Completion, Request
from rlframe.batching.plan import UpdatePlan
from rlframe.interfaces.model import UpdateResult
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.engine import CausalLMEngine

GENERATE_S, TRAIN_S, SLOTS = (float(x) for x in os.environ["KNOWN_SPEED"].split(","))


class KnownRollout(TorchRollout):
    """``SLOTS`` responses at once, each in ``GENERATE_S`` seconds."""

    _slots: asyncio.Semaphore | None = None

    async def generate(self, request: Request) -> Completion:
        """Two tokens after the known time."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(int(SLOTS))
        async with self._slots:
            version = self.version
            await asyncio.sleep(GENERATE_S)
        return Completion((5, 6), (-1.0, -1.0), (version, version), "stop")


class KnownModel(CausalLMEngine):
    """An update in ``TRAIN_S`` seconds that learns nothing."""

    def update(self, batch: Batch, plan: UpdatePlan) -> UpdateResult:
        """Wait."""
        time.sleep(TRAIN_S)
        return UpdateResult({"loss": 0.0}, 1)

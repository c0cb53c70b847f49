"""The torch rollout over two ranks passes the kit: the leader here, its follower forked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.testing.rollout_kit import RolloutKit
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.replica_rig import Followers, replica

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]


class TestTwoRanks(RolloutKit):
    """A tied head over an odd vocabulary, one key-value head that both ranks hold."""

    rollout = "torch"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def followers(cls):
        cls.made = Followers(2)
        yield
        cls.made.end()

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        config = TorchRollout.Config(**{**self.options, "tensor_parallel": 2, **options})
        spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
        return replica(self.made, config, spec)

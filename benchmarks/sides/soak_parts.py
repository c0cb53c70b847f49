"""Parts of a run that say which process they are in, so that it can be killed by its kind.

Each writes ``KIND-PID`` into the folder that the environment names; see ``benchmarks/soak.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlframe_plugins.envs.single_turn import SingleTurn
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from rlframe_strategies.engine import CausalLMEngine


def here(kind: str) -> None:
    """Say that this process is one of the kind."""
    (Path(os.environ["SOAK_FOLDER"]) / f"{kind}-{os.getpid()}").touch()


class Trainer(CausalLMEngine):
    """A rank that trains."""

    def setup(self, spec: Any) -> None:
        """As ever."""
        here("trainer")
        super().setup(spec)


class Replica(TorchRollout):
    """A rollout replica."""

    def __init__(self, config: Any, spec: Any) -> None:
        here("replica")
        super().__init__(config, spec)


class Place(SingleTurn):
    """What the collector's process plays in."""

    def __init__(self, config: Any = None, tokenizer: Any = None) -> None:
        here("environment")
        super().__init__(config, tokenizer)

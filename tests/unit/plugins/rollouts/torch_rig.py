"""A torch engine over a tiny model with weights, for tests of the engine's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Sampling
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.engine import TorchRollout


def torch_engine(folder: Path, reference: RolloutReference, **options: Any) -> TorchRollout:
    """Over the model in ``folder``, loaded with what ``reference`` has."""
    path = str(folder)
    engine = TorchRollout(TorchRollout.Config(**options), RolloutSpec(path, ModelConfig(path=path)))
    engine.load(0, reference.tensors())
    return engine


def fixed(tokens: int, **options: Any) -> Sampling:
    """So many tokens, no less and no more."""
    return Sampling(max_new_tokens=tokens, min_new_tokens=tokens, **options)

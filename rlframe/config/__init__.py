"""The config of a run: frozen dataclasses, loaded once, never changed."""

from rlframe.config.checks import check_choice, check_range
from rlframe.config.schema import Config, RewardConfig, RewardPart, RoleConfig
from rlframe.config.sections import (
    DataConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    PoolConfig,
    RunConfig,
    SamplingConfig,
)
from rlframe.config.selected import Selected

__all__ = [
    "Config",
    "DataConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "PoolConfig",
    "RewardConfig",
    "RewardPart",
    "RoleConfig",
    "RunConfig",
    "SamplingConfig",
    "Selected",
    "check_choice",
    "check_range",
]

"""Conformance kits: what every plugin must do, as tests that its author can run.

Each kit is imported from its module when it is first used, since most need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "AdapterKit": "adapter_kit",
    "AlgorithmKit": "algorithm_kit",
    "ClusterKit": "cluster_kit",
    "EnvironmentKit": "environment_kit",
    "MapperKit": "mapper_kit",
    "PairKit": "pair_kit",
    "PluginKit": "plugin_kit",
    "ProtocolKit": "protocol_kit",
    "RewardKit": "reward_kit",
    "RolloutKit": "rollout_kit",
    "SchedulerKit": "scheduler_kit",
    "StrategyKit": "strategy_kit",
    "TransferKit": "transfer_kit",
    "run_ranks": "dist",
}

if TYPE_CHECKING:
    from rlframe.testing.adapter_kit import AdapterKit
    from rlframe.testing.algorithm_kit import AlgorithmKit
    from rlframe.testing.cluster_kit import ClusterKit
    from rlframe.testing.dist import run_ranks
    from rlframe.testing.environment_kit import EnvironmentKit
    from rlframe.testing.mapper_kit import MapperKit
    from rlframe.testing.pair_kit import PairKit
    from rlframe.testing.plugin_kit import PluginKit
    from rlframe.testing.protocol_kit import ProtocolKit
    from rlframe.testing.reward_kit import RewardKit
    from rlframe.testing.rollout_kit import RolloutKit
    from rlframe.testing.scheduler_kit import SchedulerKit
    from rlframe.testing.strategy_kit import StrategyKit
    from rlframe.testing.transfer_kit import TransferKit

__all__ = [
    "AdapterKit",
    "AlgorithmKit",
    "ClusterKit",
    "EnvironmentKit",
    "MapperKit",
    "PairKit",
    "PluginKit",
    "ProtocolKit",
    "RewardKit",
    "RolloutKit",
    "SchedulerKit",
    "StrategyKit",
    "TransferKit",
    "run_ranks",
]


def __getattr__(name: str) -> Any:
    """Import a kit from its module at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlframe.testing' has no attribute {name!r}")
    return getattr(import_module(f"rlframe.testing.{_HOME[name]}"), name)

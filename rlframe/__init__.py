"""rlframe: reinforcement learning for large language models; a small core, plugins for the rest.

Names are imported when they are first used, so that ``import rlframe`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "API_VERSION": "rlframe.host.hookspecs",
    "Algorithm": "rlframe.algorithm",
    "Batch": "rlframe.batching.batch",
    "BatchError": "rlframe.errors",
    "Column": "rlframe.batching.columns",
    "Completion": "rlframe.requests",
    "Component": "rlframe.host.components",
    "Config": "rlframe.config",
    "ConfigError": "rlframe.errors",
    "DataError": "rlframe.errors",
    "Episode": "rlframe.requests",
    "Group": "rlframe.requests",
    "ModelError": "rlframe.errors",
    "PluginError": "rlframe.errors",
    "Request": "rlframe.requests",
    "RewardError": "rlframe.errors",
    "RlframeError": "rlframe.errors",
    "RoleSpec": "rlframe.algorithm",
    "RolloutError": "rlframe.errors",
    "Row": "rlframe.requests",
    "Sampling": "rlframe.requests",
    "Segment": "rlframe.requests",
    "SnapshotError": "rlframe.errors",
    "Term": "rlframe.algorithm",
    "TrainingError": "rlframe.errors",
    "WorkerError": "rlframe.errors",
    "fit": "rlframe.fit_api",
    "hookimpl": "rlframe.host.hookspecs",
}

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm, RoleSpec, Term
    from rlframe.batching.batch import Batch
    from rlframe.batching.columns import Column
    from rlframe.config import Config
    from rlframe.errors import (
        BatchError,
        ConfigError,
        DataError,
        ModelError,
        PluginError,
        RewardError,
        RlframeError,
        RolloutError,
        SnapshotError,
        TrainingError,
        WorkerError,
    )
    from rlframe.fit_api import fit
    from rlframe.host.components import Component
    from rlframe.host.hookspecs import API_VERSION, hookimpl
    from rlframe.requests import Completion, Episode, Group, Request, Row, Sampling, Segment

__all__ = [
    "API_VERSION",
    "Algorithm",
    "Batch",
    "BatchError",
    "Column",
    "Completion",
    "Component",
    "Config",
    "ConfigError",
    "DataError",
    "Episode",
    "Group",
    "ModelError",
    "PluginError",
    "Request",
    "RewardError",
    "RlframeError",
    "RoleSpec",
    "RolloutError",
    "Row",
    "Sampling",
    "Segment",
    "SnapshotError",
    "Term",
    "TrainingError",
    "WorkerError",
    "__version__",
    "fit",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home module at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlframe' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))

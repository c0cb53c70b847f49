"""The rollouts, schedulers, clusters, rewards, data sets and loggers that rlframe ships."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlframe import Component, hookimpl
from rlframe_plugins.checkpoint.components import CHECKPOINTS
from rlframe_plugins.clusters.components import CLUSTERS
from rlframe_plugins.data.components import DATASETS
from rlframe_plugins.envs.components import ENVIRONMENTS, TOOL_PARSERS
from rlframe_plugins.loggers.components import LOGGERS
from rlframe_plugins.mappers.cli import add_map_command
from rlframe_plugins.protocols import PROTOCOLS
from rlframe_plugins.report.components import SECTIONS
from rlframe_plugins.resharders.cli import add_reshard_command
from rlframe_plugins.rewards.components import REWARDS
from rlframe_plugins.rollouts.components import ROLLOUTS
from rlframe_plugins.schedulers.components import SCHEDULERS
from rlframe_plugins.schedulers.simulate import add_simulate_command

if TYPE_CHECKING:
    from rlframe import Config

RLFRAME_API_VERSION = 1

_CALLBACKS = (
    Component(
        "callback",
        "lightning",
        "rlframe_plugins.callbacks.lightning:LightningCallback",
        requires=("lightning",),
        extra="lightning",
        summary="a callback written for Lightning, by its target",
    ),
)


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer everything in this package."""
    return (
        *ROLLOUTS,
        *SCHEDULERS,
        *CLUSTERS,
        *CHECKPOINTS,
        *PROTOCOLS,
        *REWARDS,
        *ENVIRONMENTS,
        *TOOL_PARSERS,
        *DATASETS,
        *LOGGERS,
        *_CALLBACKS,
        *SECTIONS,
    )


@hookimpl
def rlframe_cli(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``rlframe map``, ``rlframe reshard`` and ``rlframe simulate``."""
    add_map_command(subcommands)
    add_reshard_command(subcommands)
    add_simulate_command(subcommands)


@hookimpl
def rlframe_fit_start(run: Any, config: Config) -> None:
    """Show the plan of a run that ``mapper: auto`` placed."""
    if config.mapper.name == "auto":
        from rlframe_plugins.mappers.compare import on_start

        on_start(config)


@hookimpl
def rlframe_step_end(run: Any, step: int, metrics: dict[str, float]) -> None:
    """Take the timings of such a run."""
    from rlframe_plugins.mappers.compare import on_step

    on_step(metrics)


@hookimpl
def rlframe_fit_end(run: Any, error: BaseException | None) -> None:
    """Show its predicted and measured seconds by stage."""
    from rlframe_plugins.mappers.compare import on_end

    on_end()

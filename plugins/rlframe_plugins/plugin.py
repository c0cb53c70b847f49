"""The rollouts, schedulers, clusters, rewards, data sets and loggers that rlframe ships."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rlframe import Component, hookimpl
from rlframe_plugins.mappers.cli import add_map_command

RLFRAME_API_VERSION = 1

_ROLLOUTS = (
    Component(
        "rollout",
        "torch",
        "rlframe_plugins.rollouts.torch.engine:TorchRollout",
        summary="embedded engine over the trainer's own weights, continuous batching",
    ),
    Component(
        "rollout",
        "hf",
        "rlframe_plugins.rollouts.hf:HFRollout",
        summary="transformers' generate, the plain reference",
    ),
    Component(
        "rollout",
        "replay",
        "rlframe_plugins.rollouts.replay:ReplayRollout",
        summary="reads the rollouts that another run dumped",
    ),
)
_DATAFLOW = (
    Component(
        "scheduler",
        "sync",
        "rlframe_plugins.schedulers.sync:SyncScheduler",
        summary="collect, learn, publish in turn",
    ),
    Component(
        "cluster",
        "inline",
        "rlframe_plugins.clusters.inline:InlineCluster",
        summary="controller and worker in one process",
    ),
    Component(
        "transfer",
        "inline",
        "rlframe_plugins.transfer.inline:InlineTransfer",
        summary="batch columns stay in this process",
    ),
    Component(
        "checkpoint",
        "hybrid",
        "rlframe_plugins.checkpoint.hybrid:HybridCheckpoint",
        summary="weights to a rollout engine on the same devices",
    ),
    Component(
        "resharder",
        "gather-all",
        "rlframe_plugins.resharders.gather_all:GatherAll",
        summary="every target receives every tensor whole",
    ),
    Component(
        "mapper",
        "fixed",
        "rlframe_plugins.mappers.fixed:FixedMapper",
        summary="roles lie in the pools that the config names",
    ),
    Component(
        "mapper",
        "auto",
        "rlframe_plugins.mappers.auto:AutoMapper",
        summary="the best pools and parallel sizes, searched",
    ),
)
_TASKS = (
    Component(
        "reward",
        "exact",
        "rlframe_plugins.rewards.exact:ExactAnswer",
        summary="1 when the answer is right, else 0",
    ),
    Component(
        "environment",
        "single-turn",
        "rlframe_plugins.envs.single_turn:SingleTurn",
        summary="one prompt, one response",
    ),
    Component(
        "dataset",
        "jsonl",
        "rlframe_plugins.data.jsonl:JsonlDataset",
        summary="jsonl:PATH, one JSON object a line",
    ),
    Component(
        "dataset",
        "builtin",
        "rlframe_plugins.data.builtin:BuiltinDataset",
        summary="builtin:arithmetic, made without files",
    ),
)
_LOGGERS = (
    Component(
        "logger",
        "terminal",
        "rlframe_plugins.loggers.terminal:TerminalLogger",
        summary="live view in a terminal, plain lines elsewhere",
    ),
    Component(
        "logger",
        "jsonl",
        "rlframe_plugins.loggers.jsonl:JsonlLogger",
        summary="metrics.jsonl in the run's folder",
    ),
)


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer everything in this package."""
    return _ROLLOUTS + _DATAFLOW + _TASKS + _LOGGERS


@hookimpl
def rlframe_cli(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``rlframe map``."""
    add_map_command(subcommands)

"""The rollouts, schedulers, clusters, rewards, data sets and loggers that rlframe ships."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlframe import Component, hookimpl
from rlframe_plugins.loggers.components import LOGGERS
from rlframe_plugins.mappers.cli import add_map_command
from rlframe_plugins.protocols import PROTOCOLS
from rlframe_plugins.resharders.cli import add_reshard_command
from rlframe_plugins.rewards.components import REWARDS
from rlframe_plugins.schedulers.simulate import add_simulate_command

if TYPE_CHECKING:
    from rlframe import Config

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
        "scheduler",
        "one-step-off",
        "rlframe_plugins.schedulers.one_step_off:OneStepOffScheduler",
        summary="the next rollout overlaps this update",
    ),
    Component(
        "scheduler",
        "async",
        "rlframe_plugins.schedulers.stream:AsyncScheduler",
        summary="a stream of groups with a bound on staleness",
    ),
    *(
        Component("sampler", name, f"rlframe_plugins.schedulers.samplers:{cls}", summary=summary)
        for name, cls, summary in (
            ("in-order", "InOrder", "the earliest draws that have ended"),
            ("freshest", "Freshest", "groups of the newest weights"),
            ("windowed", "Windowed", "the earliest draws of a window, slow ones waited for"),
        )
    ),
    Component(
        "cluster",
        "inline",
        "rlframe_plugins.clusters.inline:InlineCluster",
        summary="controller and worker in one process",
    ),
    Component(
        "cluster",
        "ray",
        "rlframe_plugins.clusters.ray.cluster:RayCluster",
        requires=("ray",),
        extra="ray",
        summary="worker processes on one machine or many, local or at an address",
    ),
    Component(
        "transfer",
        "inline",
        "rlframe_plugins.transfer.inline:InlineTransfer",
        summary="batch columns stay in this process",
    ),
    Component(
        "transfer",
        "ray",
        "rlframe_plugins.transfer.ray:RayTransfer",
        requires=("ray",),
        extra="ray",
        summary="batch columns in Ray's object store, read by row where they lie",
    ),
    Component(
        "transfer",
        "transferqueue",
        "rlframe_plugins.transfer.transferqueue:TransferQueueTransfer",
        requires=("ray", "transfer_queue"),
        extra="transferqueue",
        summary="batch columns in the TransferQueue package, read by row and field",
    ),
    Component(
        "checkpoint",
        "hybrid",
        "rlframe_plugins.checkpoint.hybrid:HybridCheckpoint",
        summary="weights to a rollout engine on the same devices",
    ),
    Component(
        "checkpoint",
        "transport",
        "rlframe_plugins.checkpoint.transport:TransportCheckpoint",
        summary="weights to rollout engines in other pools",
    ),
    Component(
        "transport",
        "shm",
        "rlframe_plugins.transports.shm:SharedMemoryTransport",
        summary="weights through one machine's shared memory",
    ),
    Component(
        "transport",
        "disk",
        "rlframe_plugins.transports.files:DiskTransport",
        summary="weights through a folder that every node sees",
    ),
    Component(
        "transport",
        "collective",
        "rlframe_plugins.transports.collective:CollectiveTransport",
        summary="weights by gloo or NCCL from trainers to replicas",
    ),
    Component(
        "transport",
        "nixl",
        "rlframe_plugins.transports.nixl:NixlTransport",
        requires=("nixl",),
        extra="nixl",
        summary="weights read out of trainers' memory by NIXL (RDMA, TCP, shared memory)",
    ),
    Component(
        "codec",
        "full",
        "rlframe_plugins.codecs.full:FullCodec",
        summary="every weight as it is",
    ),
    Component(
        "codec",
        "delta",
        "rlframe_plugins.codecs.delta:DeltaCodec",
        summary="only the weights that changed, bit-exact",
    ),
    Component(
        "resharder",
        "zero-redundancy",
        "rlframe_plugins.resharders.zero_redundancy:ZeroRedundancy",
        summary="every rank receives just what it lacks",
    ),
    Component(
        "resharder",
        "vanilla",
        "rlframe_plugins.resharders.vanilla:Vanilla",
        summary="every rank gathers its whole replica and keeps its part",
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
        "csv",
        "rlframe_plugins.data.csv:CsvDataset",
        summary="csv:PATH, a table as text with names in its first line",
    ),
    Component(
        "dataset",
        "tsv",
        "rlframe_plugins.data.csv:CsvDataset",
        summary="tsv:PATH, csv with tabs",
    ),
    Component(
        "dataset",
        "parquet",
        "rlframe_plugins.data.parquet:ParquetDataset",
        requires=("pyarrow",),
        extra="parquet",
        summary="parquet:PATH, a file, a folder or a pattern",
    ),
    Component(
        "dataset",
        "hf",
        "rlframe_plugins.data.hf:HuggingFaceDataset",
        requires=("datasets",),
        extra="datasets",
        summary="hf:NAME_OR_PATH?split=.., what the datasets library loads",
    ),
    Component(
        "dataset",
        "reasoning_gym",
        "rlframe_plugins.data.reasoning_gym:ReasoningGymDataset",
        requires=("reasoning_gym",),
        extra="reasoning-gym",
        summary="reasoning_gym:TASK?size=.., tasks with verifiers",
    ),
    Component(
        "dataset",
        "builtin",
        "rlframe_plugins.data.builtin:BuiltinDataset",
        summary="builtin:arithmetic, made without files",
    ),
)
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
    return _ROLLOUTS + _DATAFLOW + PROTOCOLS + REWARDS + _TASKS + LOGGERS + _CALLBACKS


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

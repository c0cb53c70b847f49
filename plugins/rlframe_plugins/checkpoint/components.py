"""How weights reach rollout engines: checkpoint engines and what they are made of."""

from __future__ import annotations

from rlframe import Component

__all__ = ["CHECKPOINTS"]

CHECKPOINTS = (
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
)

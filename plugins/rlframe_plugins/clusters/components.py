"""The clusters and transfer engines that rlframe ships, and their mappers."""

from __future__ import annotations

from rlframe import Component

__all__ = ["CLUSTERS"]

CLUSTERS = (
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

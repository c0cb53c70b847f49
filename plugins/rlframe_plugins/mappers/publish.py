"""Seconds of bringing new weights to the rollout: on the same devices, or to another pool."""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.grid import SCHEMES, Floats, Grid
from rlframe_plugins.mappers.models import ModelShape

__all__ = ["receive_seconds", "same_layout", "send_seconds", "transition_seconds"]


def _cut(grid: Grid) -> Floats:
    """1 where weights are cut over data-parallel ranks."""
    return np.where((grid.scheme == SCHEMES.index("fsdp")) & (grid.d > grid.copies), 1.0, 0.0)


def same_layout(source: Grid, target: Grid) -> Floats:
    """1 where training and generation hold the same boxes, so that one storage serves both."""
    equal = (source.t == target.t) & (source.p == target.p)
    return np.where(equal, 1.0 - _cut(source), 0.0)


def _node_shares(source: Grid, target: Grid, node: float) -> tuple[Floats, Floats]:
    """Shares of the model that a node needs for generation and that it keeps from training."""
    nested = (source.t % target.t == 0) & (source.p % target.p == 0)
    replica = target.t * target.p
    need = np.minimum(1.0, node / replica)
    has = np.minimum(1.0, node / source.shards("fsdp"))
    wide = source.t * source.p > node
    stages = np.maximum(node / source.t * target.p / source.p, 1.0)
    need = np.where(wide & nested, stages / target.p, need)
    return need, np.where(wide & ~nested, 0.0, has)


def transition_seconds(shape: ModelShape, source: Grid, target: Grid, hardware: Hardware) -> Floats:
    """Training layout to generation layout on one pool, entry by entry of the two grids.

    Each device lacks M (1/(tg pg) - 1/shards) bytes (the zero-redundancy grouping of HybridFlow,
    table 2). Infinite where tg does not divide t or pg not p, which no engine runs on the same
    devices, unless training has neither: then its shards are dealt inside those of generation.
    """
    c = hardware.constants
    whole = float(shape.parameters * hardware.weight_bytes)
    replica, shards = target.t * target.p, source.shards("fsdp")
    nested = (source.t % target.t == 0) & (source.p % target.p == 0)
    able = nested | (source.t * source.p == 1)
    lacks = whole * (1 / replica - np.minimum(1 / shards, 1 / replica))
    need, has = _node_shares(source, target, hardware.devices)
    outside = whole * np.maximum(need - has, 0.0) / hardware.node_rate
    hop = np.where(outside > 0, c.network_latency_s, c.link_latency_s)
    seconds = np.maximum(lacks / hardware.link_rate, outside) + hop
    seconds = np.where(same_layout(source, target) == 1, 0.0, seconds) * c.scale_publish
    return np.where(able, seconds, np.inf)


def send_seconds(shape: ModelShape, source: Grid, hardware: Hardware) -> Floats:
    """Seconds for the trainer's pool to send the model out once, all of its nodes at once."""
    whole = float(shape.parameters * hardware.weight_bytes)
    if hardware.nodes == 1:
        rate = source.devices * hardware.link_rate
    else:
        rate = np.maximum(source.devices / hardware.devices, 1.0) * hardware.node_rate
    return whole / rate * hardware.constants.scale_publish


def receive_seconds(shape: ModelShape, target: Grid, hardware: Hardware) -> Floats:
    """Seconds for a rollout pool to take the model: each node once, then a broadcast inside."""
    c = hardware.constants
    whole = float(shape.parameters * hardware.weight_bytes)
    replica = target.t * target.p
    inside = whole / replica / hardware.link_rate
    arriving = whole * np.minimum(1.0, hardware.devices / replica)
    outside = 0.0 if hardware.nodes == 1 else arriving / hardware.node_rate
    return (np.maximum(inside, outside) + c.network_latency_s) * c.scale_publish

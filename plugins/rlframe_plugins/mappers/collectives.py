"""Seconds of collectives: alpha-beta rings, hierarchical over nodes, adapters shared by rings."""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.grid import Floats

__all__ = ["all_gather", "all_reduce", "point_to_point", "to_host"]


def all_gather(hardware: Hardware, total: Floats, group: Floats, stride: Floats) -> Floats:
    """Gather ``total`` bytes over ``group`` ranks that lie ``stride`` apart; also a reduce-scatter.

    All groups of the pool run at once: min(stride, devices a node) rings share a node's adapters.
    """
    c = hardware.constants
    ring = (group - 1) / group * total
    spans = group * stride > hardware.devices
    outside = ring * np.minimum(stride, hardware.devices) / hardware.node_rate
    seconds = np.maximum(ring / hardware.link_rate, np.where(spans, outside, 0.0))
    hop = np.where(spans, c.network_latency_s, c.link_latency_s)
    return np.where(group > 1, seconds + np.ceil(np.log2(group)) * hop, 0.0)


def all_reduce(hardware: Hardware, total: Floats, group: Floats, stride: Floats) -> Floats:
    """Reduce ``total`` bytes over a group: a reduce-scatter and an all-gather."""
    return 2 * all_gather(hardware, total, group, stride)


def point_to_point(hardware: Hardware, total: Floats, t: Floats, p: Floats) -> Floats:
    """Send ``total`` bytes to the next pipeline stage, a part from each of ``t`` ranks."""
    c = hardware.constants
    inside = t * p <= hardware.devices
    senders = np.maximum(hardware.devices / t, 1)
    outside = total * senders / hardware.node_rate + c.network_latency_s
    return np.where(inside, total / t / hardware.link_rate + c.link_latency_s, outside)


def to_host(hardware: Hardware, total: Floats) -> Floats:
    """Copy ``total`` bytes of every device to or from its host."""
    return total / hardware.host_rate

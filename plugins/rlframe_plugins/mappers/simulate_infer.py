"""Seconds of scoring a whole batch once without gradient."""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.collectives import all_gather, point_to_point, to_host
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.grid import SCHEMES, Floats, Grid
from rlframe_plugins.mappers.layers import Cost, head_cost, layers_cost
from rlframe_plugins.mappers.memory import states
from rlframe_plugins.mappers.workload import Workload

__all__ = ["forward", "gather_weights", "hide", "pipelined", "row_traffic", "simulate_infer"]


def forward(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """One micro-batch through the slowest pipeline stage.

    The head is computed at response positions only (a number a token for scalar heads).
    """
    tokens = grid.micro * work.sequence
    launch = hardware.constants.launch_s
    body = layers_cost(unit.shape, hardware, tokens, work.attended, grid.t, launch)
    answered = grid.micro * work.responses.mean
    return body.times(1 / grid.p) + head_cost(unit.shape, hardware, answered, grid.t)


def pipelined(micro: Cost, count: Floats, grid: Grid) -> Cost:
    """``count`` micro-batches through ``p`` stages: (count + p - 1) turns of the slowest one."""
    work = micro.times(count)
    bubble = micro.seconds * (grid.p - 1)
    return Cost(work.compute, work.memory, work.link, work.fixed, work.bubble + bubble)


def gather_weights(unit: Unit, grid: Grid, hardware: Hardware) -> Floats:
    """Seconds to gather all weights once where they are cut over data-parallel ranks.

    A rank's own part comes from the host first where it is kept there.
    """
    whole = unit.shape.parameters * hardware.weight_bytes / grid.t
    cut = grid.scheme == SCHEMES.index("fsdp")
    share = grid.d / grid.copies
    spread = np.where(cut, all_gather(hardware, whole, share, grid.t * grid.p), 0.0)
    own = states(unit.shape, grid, hardware.weight_bytes)["weights"]
    return spread + np.where(grid.offload == 1, to_host(hardware, own), 0.0)


def hide(cost: Cost, communication: Floats) -> Cost:
    """Add communication that runs beside the device's own work: only the excess is waited for."""
    return cost.add(link=np.maximum(communication - cost.device, 0.0))


def row_traffic(grid: Grid, hardware: Hardware, work: Workload) -> Floats:
    """Seconds to bring the batch's columns to a pool: each node reads the rows of its ranks."""
    nodes = np.maximum(grid.devices / hardware.devices, 1)
    total = work.tokens * hardware.constants.column_bytes
    return total / nodes / hardware.node_rate


def simulate_infer(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """Score every row of a step."""
    c = hardware.constants
    count = np.ceil(np.ceil(work.rows / grid.d) / grid.micro)
    micro = hide(forward(unit, grid, hardware, work), gather_weights(unit, grid, hardware))
    hidden = grid.micro * work.sequence * unit.shape.hidden * hardware.weight_bytes
    hop = np.where(grid.p > 1, point_to_point(hardware, hidden, grid.t, grid.p), 0.0)
    cost = pipelined(micro.add(link=hop), count, grid)
    return cost.add(link=row_traffic(grid, hardware, work), fixed=c.call_s + c.stage_s).times(
        c.scale_prepare
    )

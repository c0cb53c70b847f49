"""Seconds of every optimiser step of one batch."""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.collectives import all_gather, all_reduce, point_to_point, to_host
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES, Floats, Grid
from rlframe_plugins.mappers.layers import Cost
from rlframe_plugins.mappers.simulate_infer import (
    forward,
    gather_weights,
    hide,
    pipelined,
    row_traffic,
)
from rlframe_plugins.mappers.workload import Workload

__all__ = ["simulate_train"]


def _attention_again(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """Attention scores computed a second time in the backward pass."""
    shape, tokens = unit.shape, grid.micro * work.sequence
    flops = 2 * shape.layers * shape.heads * shape.head_dim * work.attended * tokens
    zero = np.zeros(len(grid))
    return Cost(flops / grid.t / grid.p / hardware.flops, zero, zero, zero, zero)


def _micro(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """Forward and backward of one micro-batch on the slowest stage: 3 forwards, 4 if recomputed.

    Launches of the backward pass are twice those of the forward one; its all-reduces are as many.
    """
    once = forward(unit, grid, hardware, work)
    full = np.where(grid.recompute == RECOMPUTE.index("full"), 1.0, 0.0)
    chosen = np.where(grid.recompute == RECOMPUTE.index("selective"), 1.0, 0.0)
    twice = Cost(once.compute * 2, once.memory * 2, once.link, once.fixed * 2, once.bubble)
    again = _attention_again(unit, grid, hardware, work).times(chosen)
    cost = once + twice + once.times(full) + again
    hidden = grid.micro * work.sequence * unit.shape.hidden * hardware.weight_bytes
    hop = np.where(grid.p > 1, 2 * point_to_point(hardware, hidden, grid.t, grid.p), 0.0)
    weights = gather_weights(unit, grid, hardware)
    return hide(cost.add(link=hop), weights * (2 + full) + _cut_gradients(unit, grid, hardware))


def _gradient_bytes(unit: Unit, grid: Grid) -> Floats:
    """fp32 gradients of a replica's device, bytes."""
    return 4.0 * unit.shape.parameters / (grid.t * grid.p)


def _cut_gradients(unit: Unit, grid: Grid, hardware: Hardware) -> Floats:
    """Seconds of reducing gradients after each micro-batch, where they are kept cut.

    Replicas of what is cut add theirs up as well; the sum goes to the host where it is kept there.
    """
    cut = np.isin(grid.scheme, [SCHEMES.index("fsdp"), SCHEMES.index("zero2")])
    stride, share = grid.t * grid.p, grid.d / grid.copies
    whole = _gradient_bytes(unit, grid)
    seconds = all_gather(hardware, whole, share, stride)
    seconds = seconds + all_reduce(hardware, whole / share, grid.copies, stride * share)
    away = np.where(grid.offload == 1, to_host(hardware, whole / share), 0.0)
    return np.where(cut, seconds + away, 0.0)


def _step(unit: Unit, grid: Grid, hardware: Hardware) -> Cost:
    """After the last micro-batch: reduce gradients, step the optimiser, spread new weights.

    An optimiser in host memory steps there, taken to be as slow as the host's link.
    """
    c, stride = hardware.constants, grid.t * grid.p
    width, shape = hardware.weight_bytes, unit.shape
    whole = [SCHEMES.index(s) for s in ("ddp", "zero1", "megatron")]
    reduced = np.where(np.isin(grid.scheme, whole), 1.0, 0.0)
    once = all_gather(hardware, _gradient_bytes(unit, grid), grid.d, stride)
    twice = np.where(grid.scheme == SCHEMES.index("ddp"), 2.0, 1.0)
    gradients = reduced * once * twice * (1 - c.gradient_overlap)
    spread = np.where(
        np.isin(grid.scheme, [SCHEMES.index(s) for s in ("zero1", "zero2", "megatron")]),
        all_gather(hardware, width * shape.parameters / stride, grid.d, stride),
        0.0,
    )
    own = shape.parameters / grid.shards("zero1", "zero2", "fsdp", "megatron")
    here = grid.offload == 0
    memory = np.where(here, own * c.optimizer_traffic / hardware.memory_rate, 0.0)
    host = np.where(here, 0.0, to_host(hardware, own * c.optimizer_traffic))
    zero = np.zeros(len(grid))
    return Cost(zero, memory, gradients + spread + host, zero + c.optimizer_step_s, zero)


def simulate_train(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """All epochs and mini-batches of a step."""
    c = hardware.constants
    count = np.ceil(np.ceil(unit.minibatch_rows / grid.d) / grid.micro)
    update = pipelined(_micro(unit, grid, hardware, work), count, grid) + _step(
        unit, grid, hardware
    )
    updates = -(-work.rows // unit.minibatch_rows) * unit.epochs
    cost = update.times(float(updates))
    return cost.add(link=row_traffic(grid, hardware, work), fixed=c.call_s + c.stage_s).times(
        c.scale_learn
    )

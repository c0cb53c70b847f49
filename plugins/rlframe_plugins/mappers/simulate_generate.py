"""Seconds of sampling every response: prefill, then decode with continuous batching."""

from __future__ import annotations

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.collectives import point_to_point
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.grid import Floats, Grid
from rlframe_plugins.mappers.layers import Cost, head_cost, layers_cost
from rlframe_plugins.mappers.memory import kv_bytes
from rlframe_plugins.mappers.workload import Workload

__all__ = ["decode_round", "simulate_generate"]

_PREFILL_TOKENS = 8192.0


def decode_round(
    unit: Unit, grid: Grid, hardware: Hardware, active: Floats, context: Floats | float
) -> Cost:
    """One token of ``active`` sequences a replica, whose caches hold ``context`` tokens each.

    Bound by reading weights and caches until the batch is large. With ``p`` stages the batch is
    cut into ``p`` parts that follow each other, so that each stage reads its weights ``p`` times.
    """
    c, shape = hardware.constants, unit.shape
    part = active / grid.p
    body = layers_cost(shape, hardware, part, context, grid.t, c.graph_launch_s)
    head = head_cost(shape, hardware, part, grid.t).times(grid.p)
    cache = active * context * kv_bytes(shape, grid.t, grid.p, hardware.weight_bytes)
    read = cache / hardware.memory_rate
    cost = (body + head).add(link=_hops(unit, grid, hardware, part), fixed=c.decode_round_s)
    return Cost(cost.compute, cost.memory + read, cost.link, cost.fixed, cost.bubble)


def _hops(unit: Unit, grid: Grid, hardware: Hardware, tokens: Floats) -> Floats:
    """Seconds in which a token's hidden states go from stage to stage, and its id back."""
    width = tokens * unit.shape.hidden * hardware.weight_bytes
    hop = point_to_point(hardware, width, grid.t, grid.p)
    return np.where(grid.p > 1, grid.p * hop, 0.0)


def _prefill(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """Every prompt once for all of its samples, in chunks through the pipeline."""
    tokens = np.ceil(work.prompts / grid.d) * work.prompt_tokens
    chunk = np.minimum(tokens, _PREFILL_TOKENS)
    launch = hardware.constants.graph_launch_s
    body = layers_cost(unit.shape, hardware, chunk, work.prompt_tokens, grid.t, launch)
    turns = np.where(tokens > 0, np.ceil(tokens / np.maximum(chunk, 1)) + grid.p - 1, 0.0)
    return body.times(turns / grid.p)


def simulate_generate(unit: Unit, grid: Grid, hardware: Hardware, work: Workload) -> Cost:
    """All responses of a step.

    A replica holds ``grid.micro`` sequences. While others wait it is full; then it drains, and the
    length distribution says how many are left after each token.
    """
    c, lengths = hardware.constants, work.responses
    share = np.ceil(work.generated / grid.d)
    held = np.minimum(grid.micro, share)
    full = np.maximum(share - held, 0.0) * lengths.mean / held
    context = work.prompt_tokens + lengths.in_flight
    cost = _prefill(unit, grid, hardware, work)
    cost = cost + decode_round(unit, grid, hardware, held, context).times(full)
    before, bins = 0.0, len(lengths.quantiles)
    for index, length in enumerate(lengths.quantiles):
        if length > before:
            left = held * (bins - index) / bins
            context = work.prompt_tokens + (before + length) / 2
            cost = cost + decode_round(unit, grid, hardware, left, context).times(length - before)
        before = length
    return cost.add(fixed=c.call_s + c.stage_s + c.wake_s).times(c.scale_collect)

"""Seconds of a forward pass by what bounds it: arithmetic, device memory, links, launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.collectives import all_reduce
from rlframe_plugins.mappers.grid import Floats
from rlframe_plugins.mappers.memory import layer_elements
from rlframe_plugins.mappers.models import ModelShape

__all__ = ["Cost", "head_cost", "layers_cost", "touched_parameters"]


@dataclass(frozen=True)
class Cost:
    """Seconds of every way, (ways,) each, that add up: what a step waits for.

    ``compute`` at the reachable FLOP/s; ``memory`` traffic of device memory; ``link`` what
    communication adds; ``fixed`` launches and overheads; ``bubble`` idle pipeline stages.
    """

    compute: Floats
    memory: Floats
    link: Floats
    fixed: Floats
    bubble: Floats

    @classmethod
    def zero(cls, ways: int) -> Cost:
        """No seconds."""
        return cls(*(np.zeros(ways) for _ in range(5)))

    @property
    def device(self) -> Floats:
        """Seconds in which the device itself is busy."""
        return self.compute + self.memory

    @property
    def seconds(self) -> Floats:
        """All of it."""
        return self.compute + self.memory + self.link + self.fixed + self.bubble

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self.parts(), other.parts(), strict=True)))

    def times(self, factor: Floats | float) -> Cost:
        """Every part ``factor`` times."""
        return Cost(*(part * factor for part in self.parts()))

    def parts(self) -> tuple[Floats, ...]:
        """The parts in the order of the fields."""
        return self.compute, self.memory, self.link, self.fixed, self.bubble

    def add(self, *, link: Floats | float = 0.0, fixed: Floats | float = 0.0) -> Cost:
        """With more seconds of links or overhead."""
        return Cost(self.compute, self.memory, self.link + link, self.fixed + fixed, self.bubble)


def touched_parameters(shape: ModelShape, tokens: Floats) -> Floats:
    """Parameters of all layers that are read for ``tokens`` tokens (experts: those drawn)."""
    if not shape.sparse_layers:
        return np.full_like(tokens, float(shape.layer_parameters))
    missed = (1 - shape.active_experts / shape.experts) ** tokens
    one = 3 * shape.hidden * shape.expert_intermediate * shape.sparse_layers
    return shape.layer_parameters - one * shape.experts * missed


def layers_cost(
    shape: ModelShape,
    hardware: Hardware,
    tokens: Floats,
    attended: Floats | float,
    t: Floats,
    kernel_s: float,
) -> Cost:
    """One forward pass of ``tokens`` tokens through *all* layers on ``t`` ranks.

    FLOPs a token: twice the active parameters and 4 L h s of attention, of which a causal mask
    leaves half; ``attended`` is s in tokens. Two all-reduces a layer.
    """
    c = hardware.constants
    attention = 2 * shape.layers * shape.heads * shape.head_dim * attended
    flops = tokens * (2 * shape.active_layer_parameters + attention) / t
    kept = layer_elements(shape) * shape.layers * tokens * c.elementwise_passes
    traffic = hardware.weight_bytes * (touched_parameters(shape, tokens) + kept) / t
    compute, memory = flops / hardware.flops, traffic / hardware.memory_rate
    launches = shape.layers * c.layer_kernels * kernel_s
    width = tokens * shape.hidden * hardware.weight_bytes
    link = 2 * shape.layers * all_reduce(hardware, width, t, np.ones_like(t))
    idle = np.maximum(launches - compute - memory, 0.0)
    return Cost(compute, memory, link, idle, np.zeros_like(t))


def head_cost(shape: ModelShape, hardware: Hardware, tokens: Floats, t: Floats) -> Cost:
    """The output head on the ``tokens`` positions that need it, cut over the vocabulary."""
    compute = 2.0 * shape.hidden * shape.outputs * tokens / t / hardware.flops
    read = shape.hidden * shape.outputs * hardware.weight_bytes
    logits = tokens * shape.outputs * hardware.constants.logits_bytes
    zero = np.zeros_like(t)
    return Cost(compute, (read + logits) / t / hardware.memory_rate, zero, zero, zero)

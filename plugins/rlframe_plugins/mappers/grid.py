"""Every way to run a unit on a pool, as arrays: one entry a way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe_plugins.mappers.catalogue import Hardware
from rlframe_plugins.mappers.dataflow import Unit
from rlframe_plugins.mappers.workload import Workload

__all__ = ["RECOMPUTE", "SCHEMES", "SCHEMES_OF", "Grid", "Way", "generation_grid", "model_grid"]

Floats = NDArray[np.float64]

SCHEMES = ("ddp", "zero1", "zero2", "fsdp", "megatron")
"""How states are sharded: not, optimiser, + gradients, + weights, optimiser under t x p."""
RECOMPUTE = ("none", "selective", "full")
"""Kept for the backward pass: all, all but attention scores, the input of each layer."""
SCHEMES_OF = {
    "single": ("ddp",),
    "ddp": ("ddp",),
    "fsdp": ("fsdp",),
    "deepspeed": ("zero1", "zero2", "fsdp"),
    "megatron": ("megatron",),
}
"""Schemes that a strategy can run; strategy "single" has one rank."""


@dataclass(frozen=True)
class Way:
    """One way: ``grains`` of the pool and its devices, parallel sizes and choices, as numbers.

    ``micro`` is rows of a micro-batch, or for a rollout the sequences that a replica holds.
    """

    grains: int
    devices: int
    t: int
    p: int
    d: int
    scheme: int
    recompute: int
    offload: int
    micro: int


@dataclass(frozen=True)
class Grid:
    """Ways as arrays of shape (ways,), float64; the fields are those of :class:`Way`."""

    grains: Floats
    devices: Floats
    t: Floats
    p: Floats
    d: Floats
    scheme: Floats
    recompute: Floats
    offload: Floats
    micro: Floats

    @classmethod
    def of(cls, ways: Sequence[Way] | Sequence[tuple[int, ...]]) -> Grid:
        """Ways as arrays."""
        rows = [tuple(vars(w).values()) if isinstance(w, Way) else w for w in ways]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls)))
        return cls(*np.ascontiguousarray(table.T))

    def __len__(self) -> int:
        return len(self.t)

    def way(self, index: int) -> Way:
        """One entry."""
        return Way(*(int(getattr(self, f.name)[index]) for f in fields(self)))

    def shards(self, *schemes: str) -> Floats:
        """Parts that a state is cut into, over ``d`` too under the schemes that are named."""
        codes = [SCHEMES.index(s) for s in schemes]
        cut: Floats = self.t * self.p * np.where(np.isin(self.scheme, codes), self.d, 1.0)
        return cut


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


def _powers(limit: float) -> list[int]:
    """Powers of two from 1 to ``limit``, at least one."""
    return [1 << i for i in range(max(int(limit), 1).bit_length())]


def tensor_sizes(shape: Any, devices_per_node: int) -> list[int]:
    """Tensor-parallel sizes: divide the node, the heads and the MLP (t | devices a node)."""
    width = shape.expert_intermediate if shape.sparse_layers else shape.intermediate
    return [
        t
        for t in _divisors(devices_per_node)
        if shape.heads % t == 0
        and width % t == 0
        and (shape.kv_heads % t == 0 or t % shape.kv_heads == 0)
    ]


def _meshes(unit: Unit, scheme: str, devices: int, node: int) -> Iterator[tuple[int, int, int]]:
    """(t, p, d) with t p d = devices; d divides the mini-batch, p the layers."""
    tensor = tensor_sizes(unit.shape, node) if scheme == "megatron" else [1]
    stages = _divisors(unit.shape.layers) if scheme == "megatron" else [1]
    for t, p in product(tensor, stages):
        d, rest = divmod(devices, t * p)
        if unit.strategies == ("single",) and d > 1:
            continue
        if d and not rest and not (unit.trained and unit.minibatch_rows % d):
            yield t, p, d


def _node_of(hardware: Hardware, devices: int) -> int:
    """Devices of a node that a pool uses."""
    return min(hardware.devices, devices)


def model_grid(unit: Unit, hardware: Hardware, work: Workload, pools: dict[int, int]) -> Grid:
    """Every way to run a model role on each pool size (``grains``: devices)."""
    ways: list[tuple[int, ...]] = []
    names = dict.fromkeys(s for name in unit.strategies for s in SCHEMES_OF[name])
    if not unit.trained:
        names = dict.fromkeys("ddp" if s.startswith("zero") else s for s in names)
    for (grains, devices), scheme in product(pools.items(), names):
        for t, p, d in _meshes(unit, scheme, devices, _node_of(hardware, devices)):
            rows = (unit.minibatch_rows if unit.trained else work.rows) / d
            micros = [m for m in _powers(rows) if not unit.micro_tokens or m == 1
                      or m * work.sequence <= unit.micro_tokens]  # fmt: skip
            recompute = range(len(RECOMPUTE)) if unit.trained else (1,)
            for micro, again, offload in product(micros, recompute, (0, 1)):
                code = SCHEMES.index(scheme)
                ways.append((grains, devices, t, p, d, code, again, offload, micro))
    return Grid.of(ways)


def generation_grid(unit: Unit, hardware: Hardware, work: Workload, pools: dict[int, int]) -> Grid:
    """Every way to generate: tensor and pipeline sizes, sequences that a replica holds at once."""
    ways: list[tuple[int, ...]] = []
    for grains, devices in pools.items():
        node = _node_of(hardware, devices)
        sizes = list(product(tensor_sizes(unit.shape, node), _divisors(unit.shape.layers)))
        if unit.whole:
            sizes = [(1, 1)]
        for t, p in sizes:
            d, rest = divmod(devices, t * p)
            if not d or rest or d > work.generated or (p > 1 and t < node):
                continue
            share = -(-work.generated // d)
            for held in dict.fromkeys(-(-share // part) for part in _powers(share)):
                ways.append((grains, devices, t, p, d, SCHEMES.index("megatron"), 1, 0, held))
    return Grid.of(ways)

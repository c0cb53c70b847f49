"""Every way to run a unit on a pool, as arrays: one entry a way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlframe.errors import ConfigError
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
MEGATRON_FAMILIES = ("", "llama", "qwen2", "qwen3")
"""Model types that strategy megatron builds; a shape without one is any."""


@dataclass(frozen=True)
class Way:
    """One way: ``grains`` of the pool and its devices, parallel sizes and choices, as numbers.

    ``micro`` is rows of a micro-batch, or for a rollout the sequences that a replica holds;
    ``offload`` 1 keeps states in host memory; ``copies`` are replicas of what FSDP shards.
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
    copies: int = 1


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
    copies: Floats

    @classmethod
    def of(cls, ways: Sequence[Way] | Sequence[tuple[int, ...]]) -> Grid:
        """Ways as arrays; tuples may leave ``copies`` out."""
        rows = [tuple(vars(w if isinstance(w, Way) else Way(*w)).values()) for w in ways]
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
        share = self.d / self.copies
        cut: Floats = self.t * self.p * np.where(np.isin(self.scheme, codes), share, 1.0)
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


def _schemes(unit: Unit) -> list[str]:
    """How a unit's states may be sharded. Raises ConfigError where no strategy knows the model."""
    allowed = [s for name in unit.strategies for s in SCHEMES_OF[name]]
    names = unit.fixed.schemes or tuple(dict.fromkeys(allowed))
    if not unit.trained:
        names = tuple(dict.fromkeys("ddp" if s.startswith("zero") else s for s in names))
    known = unit.shape.family in MEGATRON_FAMILIES
    left = [s for s in names if known or s != "megatron"]
    if not left:
        raise ConfigError(
            f"strategy 'megatron' does not know model_type '{unit.shape.family}' (role "
            f"'{unit.name}'): use --strategy fsdp or deepspeed"
        )
    return left


def _tensor_of(unit: Unit, scheme: str, node: int) -> list[int]:
    """Tensor sizes of a role; Megatron gives each rank whole key-value heads."""
    if unit.fixed.tensor:
        return [unit.fixed.tensor]
    if scheme != "megatron":
        return [1]
    return [t for t in tensor_sizes(unit.shape, node) if unit.shape.kv_heads % t == 0]


def _meshes(unit: Unit, scheme: str, devices: int, node: int) -> Iterator[tuple[int, int, int]]:
    """(t, p, d) with t p d = devices; d divides the mini-batch, p the layers."""
    stages = _divisors(unit.shape.layers) if scheme == "megatron" else [1]
    if unit.fixed.stages:
        stages = [unit.fixed.stages]
    for t, p in product(_tensor_of(unit, scheme, node), stages):
        d, rest = divmod(devices, t * p)
        if unit.strategies == ("single",) and d > 1:
            continue
        if d and not rest and not (unit.trained and unit.minibatch_rows % d):
            yield t, p, d


def _node_of(hardware: Hardware, devices: int) -> int:
    """Devices of a node that a pool uses."""
    return min(hardware.devices, devices)


def _copies(unit: Unit, scheme: str, t: int, d: int, node: int) -> list[int]:
    """Replicas of sharded weights: one, or one a node."""
    asked = unit.fixed.copies
    if asked:
        return [] if d % asked else [asked]
    inside = node // t
    if scheme != "fsdp" or "fsdp" not in unit.strategies or d <= inside or d % inside:
        return [1]
    return [1, d // inside] if inside > 1 else [1]


def _recomputes(unit: Unit, scheme: str) -> list[int]:
    """Attention of PyTorch keeps no scores, so that "none" is Megatron's alone."""
    if not unit.trained:
        return [RECOMPUTE.index("selective")]
    if unit.fixed.recompute:
        return [RECOMPUTE.index(unit.fixed.recompute)]
    return [RECOMPUTE.index(r) for r in RECOMPUTE if r != "none" or scheme == "megatron"]


def _offloads(unit: Unit, scheme: str, hardware: Hardware) -> list[int]:
    """Host memory is another one only beside a GPU; FSDP and ZeRO 3 use it."""
    if unit.fixed.offload is not None:
        return [int(unit.fixed.offload)]
    return [0, 1] if scheme == "fsdp" and not hardware.name.startswith("cpu") else [0]


def _micros(unit: Unit, work: Workload, d: int) -> list[int]:
    """Rows of a micro-batch: powers of two, or what the config fills it up to."""
    rows = (unit.minibatch_rows if unit.trained else work.rows) / d
    if unit.micro_tokens:
        return [max(min(int(unit.micro_tokens // work.sequence), int(rows)), 1)]
    return _powers(rows)


def model_grid(unit: Unit, hardware: Hardware, work: Workload, pools: dict[int, int]) -> Grid:
    """Every way to run a model role on each pool size (``grains``: devices)."""
    ways: list[tuple[int, ...]] = []
    for (grains, devices), scheme in product(pools.items(), _schemes(unit)):
        code, node = SCHEMES.index(scheme), _node_of(hardware, devices)
        for t, p, d in _meshes(unit, scheme, devices, node):
            rest = product(
                _micros(unit, work, d),
                _recomputes(unit, scheme),
                _offloads(unit, scheme, hardware),
                _copies(unit, scheme, t, d, node),
            )
            for micro, again, offload, copies in rest:
                ways.append((grains, devices, t, p, d, code, again, offload, micro, copies))
    return Grid.of(ways)


def _generation_sizes(unit: Unit, node: int) -> Iterator[tuple[int, int]]:
    """(t, p) of a replica; stages only where a node is full."""
    fixed = unit.fixed
    tensor = [fixed.tensor] if fixed.tensor else tensor_sizes(unit.shape, node)
    stages = [fixed.stages] if fixed.stages else _divisors(unit.shape.layers)
    for t, p in product(tensor, stages):
        if p == 1 or t >= node or fixed.stages:
            yield t, p


def generation_grid(unit: Unit, hardware: Hardware, work: Workload, pools: dict[int, int]) -> Grid:
    """Every way to generate: tensor and pipeline sizes, sequences that a replica holds at once."""
    ways: list[tuple[int, ...]] = []
    code, most = SCHEMES.index("megatron"), unit.fixed.held
    for grains, devices in pools.items():
        for t, p in _generation_sizes(unit, _node_of(hardware, devices)):
            d, rest = divmod(devices, t * p)
            if not d or rest or d > work.generated:
                continue
            share = -(-work.generated // d)
            parts = [min(share, most)] if most else [-(-share // part) for part in _powers(share)]
            for held in dict.fromkeys(parts):
                ways.append((grains, devices, t, p, d, code, 1, 0, held))
    return Grid.of(ways)

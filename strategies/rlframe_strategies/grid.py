"""Parallel sizes of the ``fsdp`` strategy, where a rank stands among them, and its groups.

Tensor-parallel ranks are neighbours, then those that share rows by context, then data-parallel
ones: ``rank = (data * cp + context) * tp + tensor``. Weights are cut by tensor rank, and each cut
is sharded over the ``shards`` ranks of a replica, context-parallel ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Grid", "Place", "Sizes"]


@dataclass(frozen=True)
class Place:
    """A rank's coordinates: replica and shard of the weights, context and tensor index."""

    replica: int
    shard: int
    context: int
    tensor: int


@dataclass(frozen=True)
class Sizes:
    """``dp`` ranks with rows of their own, each of ``cp`` x ``tp``; ``replicas`` of the weights."""

    dp: int = 1
    replicas: int = 1
    cp: int = 1
    tp: int = 1

    @classmethod
    def of(cls, config: Any, world: int) -> Sizes:
        """From options ``tp``, ``cp`` and ``replicas``. Raises ConfigError where they don't fit."""
        inside = config.tp * config.cp
        if world % inside:
            raise ConfigError(
                f"strategy.tp={config.tp} x strategy.cp={config.cp} does not divide {world} ranks: "
                f"use a pool of a multiple of {inside} devices, or smaller sizes"
            )
        dp = world // inside
        if dp % config.replicas:
            raise ConfigError(
                f"strategy.replicas={config.replicas} does not divide {dp} data-parallel ranks "
                f"({world} ranks / tp {config.tp} / cp {config.cp})"
            )
        return cls(dp, config.replicas, config.cp, config.tp)

    @property
    def shards(self) -> int:
        """Ranks that a tensor rank's weights are sharded over."""
        return self.dp // self.replicas * self.cp

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.cp * self.tp

    def place(self, rank: int) -> Place:
        """Where a global rank stands."""
        outer, tensor = divmod(rank, self.tp)
        replica, shard = divmod(outer, self.shards)
        return Place(replica, shard, outer % self.cp, tensor)


class Grid:
    """Process groups of one rank; every rank makes them at once, in the same order.

    ``weights`` is the mesh that FSDP shards over (and replicates over, in its first dimension).
    """

    def __init__(self, sizes: Sizes, rank: int, device: str) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.sizes, self.place = sizes, sizes.place(rank)
        self.tensor: Any = None
        self.context: Any = None
        self.data: Any = None
        """Ranks with other rows; None: all of them."""
        self.weights: DeviceMesh
        if sizes.world == sizes.shards:
            self.weights = init_device_mesh(device, (sizes.world,))
        else:
            names = ("replica", "shard", "tensor")
            shape = (sizes.replicas, sizes.shards, sizes.tp)
            whole = init_device_mesh(device, shape, mesh_dim_names=names)
            self.weights = whole[names[:2]] if sizes.replicas > 1 else whole["shard"]
            self.tensor = whole.get_group("tensor")
        if sizes.cp * sizes.tp > 1:
            names = ("data", "context", "tensor")
            rows = init_device_mesh(device, (sizes.dp, sizes.cp, sizes.tp), mesh_dim_names=names)
            self.data, self.context = rows.get_group("data"), rows.get_group("context")

"""The placement that the config writes down."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe.config import Config
from rlframe.errors import ConfigError, unknown_name
from rlframe.interfaces.cluster import ClusterInfo, Mapper, Placement, ResourcePool
from rlframe.protocol import Mesh

__all__ = ["FixedMapper"]


class FixedMapper(Mapper):
    """Every role in the pool that its ``pool`` option names, as data-parallel ranks."""

    def place(self, roles: Sequence[str], config: Config, cluster: ClusterInfo) -> Placement:
        """See :class:`Mapper`."""
        pools = {n: ResourcePool(n, p.nodes, p.devices) for n, p in config.pools.items()}
        pool_of, mesh_of = {}, {}
        for role in roles:
            pool = config.rollout.config.pool if role == "rollout" else config.role(role).pool
            if pool not in pools:
                raise ConfigError(f"role '{role}': {unknown_name('pool', pool, pools)}")
            pool_of[role], mesh_of[role] = pool, Mesh(dp=pools[pool].size)
        used = {name: pool for name, pool in pools.items() if name in pool_of.values()}
        _check_fit(used, cluster)
        return Placement(used, pool_of, mesh_of)


def _check_fit(pools: dict[str, ResourcePool], cluster: ClusterInfo) -> None:
    asked = sum(pool.size for pool in pools.values())
    there = cluster.size
    widest = max(pool.devices for pool in pools.values())
    if asked > there or widest > cluster.devices_per_node:
        wanted = ", ".join(f"{p.name} {p.nodes} x {p.devices}" for p in pools.values())
        raise ConfigError(
            f"the pools do not fit: asked for {wanted} (nodes x devices), there are "
            f"{cluster.nodes} x {cluster.devices_per_node} of kind {cluster.device}"
        )

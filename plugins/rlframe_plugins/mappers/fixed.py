"""The placement that the config writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlframe.calling.protocol import Mesh
from rlframe.config import Config
from rlframe.errors import ConfigError, unknown_name
from rlframe.interfaces.cluster import ClusterInfo, Mapper, Placement, ResourcePool

__all__ = ["FixedMapper", "check_fit", "meshes"]


class FixedMapper(Mapper):
    """Every role in the pool that its ``pool`` option names, on the mesh of its strategy."""

    def place(self, roles: Sequence[str], config: Config, cluster: ClusterInfo) -> Placement:
        """See :class:`Mapper`."""
        pools = {n: ResourcePool(n, p.nodes, p.devices) for n, p in config.pools.items()}
        pool_of: dict[str, str] = {}
        for role in roles:
            pool = config.rollout.config.pool if role == "rollout" else config.role(role).pool
            if pool not in pools:
                raise ConfigError(f"role '{role}': {unknown_name('pool', pool, pools)}")
            pool_of[role] = pool
        mesh_of = meshes(config, pools, pool_of)
        used = {name: pool for name, pool in pools.items() if name in pool_of.values()}
        check_fit(used, cluster)
        return Placement(used, pool_of, mesh_of)


def meshes(
    config: Config, pools: Mapping[str, ResourcePool], pool_of: Mapping[str, str]
) -> dict[str, Mesh]:
    """What every role's strategy, and the rollout engine, makes of its pool."""
    mesh_of = {
        role: strategy_mesh(config, role, pools[pool].size)
        for role, pool in pool_of.items()
        if role != "rollout"
    }
    if "rollout" in pool_of:
        pool = pool_of["rollout"]
        trained = mesh_of.get("policy") if pool_of.get("policy") == pool else None
        engine, options = config.rollout.load(), config.rollout.config
        mesh_of["rollout"] = engine.mesh_of(options, pools[pool].size, trained)
    return mesh_of


def strategy_mesh(config: Config, role: str, ranks: int) -> Mesh:
    """What a role's strategy makes of its pool; an error says which role asked."""
    strategy = config.role(role).strategy
    try:
        mesh: Mesh = strategy.load().mesh_of(strategy.config, ranks)
    except ConfigError as error:
        raise ConfigError(f"role '{role}' on {ranks} ranks: {error}") from error
    return mesh


def check_fit(pools: Mapping[str, ResourcePool], cluster: ClusterInfo) -> None:
    """Raise ConfigError where pools ask for more devices than there are."""
    asked = sum(pool.size for pool in pools.values())
    there = cluster.size
    widest = max(pool.devices for pool in pools.values())
    if asked > there or widest > cluster.devices_per_node:
        wanted = ", ".join(f"{p.name} {p.nodes} x {p.devices}" for p in pools.values())
        raise ConfigError(
            f"the pools do not fit: asked for {wanted} (nodes x devices), there are "
            f"{cluster.nodes} x {cluster.devices_per_node} of kind {cluster.device}"
        )

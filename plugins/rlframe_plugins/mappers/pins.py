"""A placement that the config holds: ``mapper.pin``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlframe.calling.protocol import Mesh
from rlframe.config import Config as FitConfig
from rlframe.errors import ConfigError, unknown_name
from rlframe.interfaces.cluster import ClusterInfo, Placement, ResourcePool
from rlframe_plugins.mappers.dataflow import ROLLOUT
from rlframe_plugins.mappers.fixed import check_fit, meshes

__all__ = ["check_pins", "pinned"]

_PIN = re.compile(r"(\w[\w.-]*)=([\w.-]+):dp(\d+),pp(\d+),tp(\d+)")


def check_pins(pins: Sequence[str]) -> None:
    """Raise ValueError for one of another form."""
    for pin in pins:
        if not _PIN.fullmatch(pin):
            raise ValueError(f"pin must be ROLE=POOL:dpD,ppP,tpT, not {pin!r}")


def pinned(
    pins: Sequence[str], roles: Sequence[str], config: FitConfig, cluster: ClusterInfo
) -> Placement:
    """The placement that the config pins, checked against its pools, strategies, the cluster."""
    pools = {n: ResourcePool(n, p.nodes, p.devices) for n, p in config.pools.items()}
    pool_of: dict[str, str] = {}
    sizes: dict[str, tuple[int, int, int]] = {}
    for pin in pins:
        match = _PIN.fullmatch(pin)
        assert match is not None
        role, pool = match[1], match[2]
        if pool not in pools:
            raise ConfigError(f"mapper.pin '{pin}': {unknown_name('pool', pool, pools)}")
        pool_of[role], sizes[role] = pool, (int(match[3]), int(match[4]), int(match[5]))
    missing = [role for role in roles if role not in pool_of]
    if missing:
        raise ConfigError(f"mapper.pin names no place for '{missing[0]}'")
    pool_of = {role: pool_of[role] for role in roles}
    used = {name: pool for name, pool in pools.items() if name in pool_of.values()}
    check_fit(used, cluster)
    mesh_of = meshes(config, used, pool_of)
    for role in roles:
        _check_sizes(role, sizes[role], _sizes(role, mesh_of[role]))
    return Placement(used, pool_of, mesh_of)


def _sizes(role: str, mesh: Mesh) -> tuple[int, int, int]:
    """Data-parallel, pipeline and tensor sizes, for the rollout those of generation."""
    if role != ROLLOUT:
        return mesh.dp, mesh.pp, mesh.tp
    return mesh.size // (mesh.pg * mesh.tg), mesh.pg, mesh.tg


def _check_sizes(role: str, asked: tuple[int, int, int], made: tuple[int, int, int]) -> None:
    if asked != made:
        words = ["dp{},pp{},tp{}".format(*sizes) for sizes in (asked, made)]
        where = "the rollout" if role == ROLLOUT else f"the strategy of role '{role}'"
        raise ConfigError(
            f"mapper.pin says {role}={words[0]}, but {where} makes {words[1]} of its pool: set its "
            "parallel sizes, or pin what it makes"
        )

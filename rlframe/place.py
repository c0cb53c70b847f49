"""Where the roles of a run will live: found before its data and models are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlframe.roles import check_beside, roles_of

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm
    from rlframe.config import Config
    from rlframe.interfaces.cluster import Cluster, ClusterInfo, Placement

__all__ = ["Place", "find_place"]


@dataclass(frozen=True)
class Place:
    """A cluster, which whoever found it closes, what there is on it, and which role goes where.

    ``config`` is what the run goes on with: a mapper may have chosen parallel sizes.
    """

    cluster: Cluster
    info: ClusterInfo
    placement: Placement
    config: Config


def find_place(config: Config, algorithm: Algorithm) -> Place:
    """Place every role, and the rollout where there is one.

    Raises ConfigError where that cannot be, with what was asked and what there is: within seconds,
    since nothing large is loaded before. Nothing is left open then.
    """
    roles = roles_of(config, algorithm)
    names = [role.name for role in roles]
    if not algorithm.offline:
        names.append("rollout")
    cluster: Cluster = config.cluster.load()(config.cluster.config)
    try:
        cluster.await_pools(config.pools)
        info = cluster.info()
        mapper = config.mapper.load()(config.mapper.config)
        settled: tuple[Placement, Config] = mapper.settle(names, config, info)
        placement, config = settled
        check_beside(roles, placement.pool_of)
        cluster.check(placement)
    except BaseException:
        cluster.close()
        raise
    return Place(cluster, info, placement, config)

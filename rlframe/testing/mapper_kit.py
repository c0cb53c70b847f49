"""What every mapper must do. Subclass :class:`MapperKit` and name yours.

Example::

    class TestMine(MapperKit):
        values = {"mapper": {"name": "mine"}}
        impossible = {"pools": {"train": {"nodes": 9, "devices": 1}}}
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rlframe.config import Config
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import ClusterInfo, Mapper, Placement

__all__ = ["MapperKit"]


class MapperKit:
    """Tests of one mapper over some clusters.

    ``values`` are config values by dotted key or section, the mapper's name among them;
    ``clusters`` are what it is asked to place on; ``impossible`` are further values with which
    nothing can be placed on the first of them (None: the mapper can place everything).
    """

    values: ClassVar[Mapping[str, Any]] = {}
    clusters: ClassVar[Sequence[ClusterInfo]] = (ClusterInfo(1, 1, "cpu"), ClusterInfo(1, 2, "cpu"))
    impossible: ClassVar[Mapping[str, Any] | None] = None

    def load(self, **more: Any) -> Config:
        """The config of the kit's values, with further ones."""
        return load_config(PluginHost().load(), Asked(values={**self.values, **more})).config

    def place(self, config: Config, cluster: ClusterInfo) -> Placement:
        """What the config's mapper says about all roles of its algorithm, and the rollout."""
        mapper: Mapper = config.mapper.load()(config.mapper.config)
        return mapper.place(self.roles(config), config, cluster)

    def roles(self, config: Config) -> list[str]:
        """Names to place."""
        algorithm = config.algo.load()(config.algo.config)
        return [*(role.name for role in algorithm.roles()), "rollout"]

    # --- what is checked ----------------------------------------------------------------------

    def test_every_role_has_a_place(self) -> None:
        """Each in a pool that exists, on as many ranks as the pool has devices."""
        config = self.load()
        for cluster in self.clusters:
            placement = self.place(config, cluster)
            assert set(placement.pool_of) == set(placement.mesh_of) == set(self.roles(config))
            for role, pool in placement.pool_of.items():
                assert placement.mesh_of[role].size == placement.pools[pool].size, (role, cluster)

    def test_pools_fit_the_cluster(self) -> None:
        """Together, node by node, and none is empty or unused."""
        config = self.load()
        for cluster in self.clusters:
            placement = self.place(config, cluster)
            pools = placement.pools
            assert {name: pool.name for name, pool in pools.items()} == {n: n for n in pools}
            assert set(pools) == set(placement.pool_of.values())
            assert all(0 < p.devices <= cluster.devices_per_node for p in pools.values())
            assert all(0 < p.nodes <= cluster.nodes for p in pools.values())
            there = cluster.nodes * cluster.devices_per_node
            assert sum(p.size for p in pools.values()) <= there

    def test_it_is_pure(self) -> None:
        """Asked twice, or by another mapper of the same options, it says the same."""
        config = self.load()
        before = config.to_dict()
        for cluster in self.clusters:
            first, second = self.place(config, cluster), self.place(self.load(), cluster)
            assert first == second == self.place(config, cluster)
        assert config.to_dict() == before

    def test_only_what_is_asked_for_is_placed(self) -> None:
        """An offline run has no rollout."""
        config = self.load()
        mapper: Mapper = config.mapper.load()(config.mapper.config)
        roles = self.roles(config)[:-1]
        placement = mapper.place(roles, config, self.clusters[0])
        assert set(placement.pool_of) == set(roles)

    def test_placements_travel(self) -> None:
        """A placement survives pickling."""
        placement = self.place(self.load(), self.clusters[0])
        assert pickle.loads(pickle.dumps(placement)) == placement

    def test_what_cannot_be_placed_is_an_error(self) -> None:
        """A ``ConfigError`` that says what was asked for and what there is, in numbers."""
        if self.impossible is None:
            pytest.skip("this mapper claims to place everything")
        with pytest.raises(ConfigError, match=r"\d"):
            self.place(self.load(**self.impossible), self.clusters[0])

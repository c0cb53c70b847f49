"""Which node each part of a pool goes to, without Ray."""

from __future__ import annotations

import itertools
import random

import pytest

from rlframe.interfaces.cluster import ResourcePool
from rlframe_plugins.clusters.ray.nodes import Need, Node, fit


def nodes(*devices, free=None):
    return [
        Node(f"n{i}", f"h{i}", d, d if free is None else free[i]) for i, d in enumerate(devices)
    ]


def pools(**sizes):
    return [ResourcePool(name, *size) for name, size in sizes.items()]


def test_wide_pools_go_first_and_small_ones_fill_the_gaps():
    chosen = fit(pools(small=(1, 1), wide=(1, 3)), nodes(3, 4), free=True)
    assert chosen == {"wide": ["n0"], "small": ["n1"]}


def test_parts_of_a_pool_go_to_different_nodes():
    assert fit(pools(train=(2, 2)), nodes(4), free=True) is None
    assert fit(pools(train=(2, 2)), nodes(4, 2), free=True) == {"train": ["n1", "n0"]}


def test_a_part_is_never_spread_over_nodes():
    assert fit(pools(train=(1, 3)), nodes(2, 2), free=True) is None


def test_what_is_used_counts_only_for_what_is_free():
    have = nodes(4, free=[1])
    assert fit(pools(train=(1, 2)), have, free=True) is None
    assert fit(pools(train=(1, 2)), have, free=False) == {"train": ["n0"]}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_chosen_fits(seed):
    rng = random.Random(seed)
    have = nodes(*(rng.randint(0, 8) for _ in range(rng.randint(1, 6))))
    asked = [ResourcePool(f"p{i}", rng.randint(1, 2), rng.randint(1, 4)) for i in range(3)]
    chosen = fit(asked, have, free=True)
    if chosen is None:
        return
    used = dict.fromkeys((n.node_id for n in have), 0)
    for pool in asked:
        assert len(set(chosen[pool.name])) == pool.nodes
        for node in chosen[pool.name]:
            used[node] += pool.devices
    assert all(used[n.node_id] <= n.devices for n in have)


@pytest.mark.parametrize(("wide", "narrow"), list(itertools.product((1, 2, 4), (1, 2))))
def test_a_full_cluster_is_filled(wide, narrow):
    """One-part pools that make up a node exactly are always placed."""
    have = nodes(wide + narrow, wide, narrow)
    asked = pools(a=(1, wide + narrow), b=(1, wide), c=(1, narrow))
    assert fit(asked, have, free=True) is not None


def test_fractions_of_cpus_and_whole_gpus_are_counted():
    assert Need("CPU", 0.25).devices({"CPU": 2.0, "memory": 1e9}) == 8
    assert Need("CPU", 0.1).devices({"CPU": 0.3}) == 3
    assert Need("GPU", 0.25).devices({"CPU": 64.0, "GPU": 4.0}) == 4
    assert Need("GPU", 1.0).devices({"CPU": 2.0, "GPU": 4.0}) == 2
    assert Need("GPU", 1.0).devices({"CPU": 2.0}) == 0

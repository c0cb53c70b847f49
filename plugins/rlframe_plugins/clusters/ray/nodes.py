"""What Ray's nodes have, and which node each part of each pool goes to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlframe.errors import ConfigError
from rlframe.interfaces.cluster import ResourcePool

__all__ = ["Need", "Node", "check_fit", "fit", "read_nodes", "wait_for_room"]

_SETTLE_S = 5.0
"""How long resources of what has just ended may still be counted as used."""
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Need:
    """Resources of one device of a pool; ``kind`` is "GPU" or "CPU"."""

    kind: str
    cpus: float

    @property
    def resources(self) -> dict[str, float]:
        """What Ray is asked for, a device."""
        return {"CPU": self.cpus} | ({"GPU": 1.0} if self.kind == "GPU" else {})

    def devices(self, resources: Mapping[str, float]) -> int:
        """How many devices fit into these resources."""
        whole = [int(resources.get(k, 0.0) / v + 1e-6) for k, v in self.resources.items() if v]
        return min(whole)


@dataclass(frozen=True)
class Node:
    """One live node: devices in all, and those that nobody uses."""

    node_id: str
    host: str
    devices: int
    free: int


def read_nodes(need: Need) -> list[Node]:
    """The live nodes in the order of their ids."""
    import ray
    from ray._private import state

    free = state.available_resources_per_node()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            node_id = node["NodeID"]
            total, left = need.devices(node["Resources"]), need.devices(free.get(node_id, {}))
            found.append(Node(node_id, node["NodeManagerAddress"], total, left))
    return sorted(found, key=lambda node: node.node_id)


def fit(
    pools: Sequence[ResourcePool], nodes: Sequence[Node], *, free: bool
) -> dict[str, list[str]] | None:
    """The node of each of a pool's ``nodes`` parts, by pool; None where they do not fit.

    The widest parts first, each to the fullest node that still has room; parts of one pool go to
    different nodes.
    """
    room = {node.node_id: node.free if free else node.devices for node in nodes}
    chosen: dict[str, list[str]] = {pool.name: [] for pool in pools}
    for pool in sorted(pools, key=lambda p: (-p.devices, p.name)):
        for _ in range(pool.nodes):
            fits = [n for n, r in room.items() if r >= pool.devices and n not in chosen[pool.name]]
            if not fits:
                return None
            best = min(fits, key=lambda n: (room[n], n))
            room[best] -= pool.devices
            chosen[pool.name].append(best)
    return chosen


def check_fit(pools: Sequence[ResourcePool], nodes: Sequence[Node], need: Need) -> None:
    """Raises ConfigError where pools do not fit on nodes that nobody else uses."""
    if fit(pools, nodes, free=False) is None:
        raise ConfigError(_misfit(pools, nodes, need, False, 0.0))


def wait_for_room(pools: Sequence[ResourcePool], need: Need, wait_s: float) -> dict[str, list[str]]:
    """Nodes for all pools, waiting up to ``wait_s`` for nodes to come or to get free.

    Raises ConfigError that says what was asked and what there is.
    """
    started = time.monotonic()
    while True:
        nodes = read_nodes(need)
        chosen = fit(pools, nodes, free=True)
        if chosen is not None:
            return chosen
        possible = fit(pools, nodes, free=False) is not None
        limit = max(wait_s, _SETTLE_S if possible else 0.0)
        if time.monotonic() - started >= limit:
            raise ConfigError(_misfit(pools, nodes, need, possible, wait_s))
        time.sleep(0.2)


def _misfit(
    pools: Sequence[ResourcePool], nodes: Sequence[Node], need: Need, possible: bool, wait_s: float
) -> str:
    asked = ", ".join(f"{p.name} {p.nodes} x {p.devices}" for p in pools)
    each = " and ".join(f"{_number(v)} {k}" for k, v in need.resources.items())
    there = [f"{n.host} {n.devices} ({n.free} free)" for n in nodes[:_MOST_SHOWN]]
    more = f" and {len(nodes) - _MOST_SHOWN} more" if len(nodes) > _MOST_SHOWN else ""
    waited = f" after {_number(wait_s)} s" if wait_s else ""
    advice = (
        "others use them: end these, or wait with cluster.wait_s=SECONDS"
        if possible
        else "use smaller pools, add nodes, or wait for nodes with cluster.wait_s=SECONDS"
    )
    return (
        f"the pools do not fit{waited}: asked for {asked} (nodes x devices, a device is {each}); "
        f"there {'is 1 node' if len(nodes) == 1 else f'are {len(nodes)} nodes'} with devices: "
        f"{', '.join(there)}{more}; {advice}"
    )


def _number(value: Any) -> str:
    return f"{value:g}"

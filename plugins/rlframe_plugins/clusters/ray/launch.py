"""Starting the workers: placement groups, actors, and what each rank is told of itself.

The one place that sets rank, world, rendezvous, seeds, threads and visible devices.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlframe.calling.protocol import Mesh
from rlframe.config import Config, Selected
from rlframe.config.validate import selected_components
from rlframe.errors import ConfigError, WorkerError
from rlframe.interfaces.cluster import Placement, ResourcePool, WorkerGroup
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.interfaces.transfer import TransferEngine
from rlframe_plugins.clusters.ray.actor import Boot, Where, WorkerActor
from rlframe_plugins.clusters.ray.crew import Bound, Crew, Member, Sent
from rlframe_plugins.clusters.ray.failures import translate
from rlframe_plugins.clusters.ray.group import RayGroup, RayHosted
from rlframe_plugins.clusters.ray.nodes import Need
from rlframe_plugins.clusters.ray.replica_crew import ReplicaCrew
from rlframe_plugins.clusters.ray.resolver import Resolver
from rlframe_plugins.clusters.ray.restarts import Restarts
from rlframe_plugins.clusters.ray.session import runtime_env, worker_environment

__all__ = ["Crews"]

_PLACE_S = 10.0
_CLOSE_S = 10.0
ROLLOUT = "rollout"


class Crews:
    """All worker processes of a run."""

    def __init__(
        self, options: Any, need: Need, config: Config, transfer: TransferEngine, nodes: int
    ) -> None:
        self._options, self._need, self._config = options, need, config
        environment = worker_environment(options.threads, one_node=nodes == 1)
        self._environment = runtime_env(environment)
        self._transfer = transfer
        self._resolver = Resolver()
        self._groups: dict[str, PlacementGroup] = {}
        self._crews: list[Crew] = []
        self._plain_boot = Boot(tuple(p for p in sys.path if p), _user_files(config))
        self._boot = ray.put(self._plain_boot)

    # --- placing ------------------------------------------------------------------------------

    def place(self, placement: Placement, nodes: Mapping[str, Sequence[str]]) -> None:
        """Reserve a bundle a device, on the chosen nodes. Raises ConfigError within seconds."""
        for name, pool in placement.pools.items():
            where = [node for node in nodes[name] for _ in range(pool.devices)]
            self._groups[name] = placement_group(
                [self._need.resources] * pool.size,
                strategy="PACK",
                name=f"rlframe-{name}-{uuid.uuid4().hex}",
                bundle_label_selector=[{"ray.io/node-id": node} for node in where],
            )
        deadline = time.monotonic() + max(_PLACE_S, self._options.wait_s)
        for name, group in self._groups.items():
            if not group.wait(max(deadline - time.monotonic(), 0.1)):
                pool = placement.pools[name]
                raise ConfigError(
                    f"pool '{name}' ({pool.nodes} x {pool.devices} devices of "
                    f"{self._need.resources}) could not be reserved: others took its place "
                    "meanwhile; try again, or wait with cluster.wait_s=SECONDS"
                )

    # --- starting -----------------------------------------------------------------------------

    def start(
        self,
        placement: Placement,
        engines: Mapping[str, EngineSpec],
        rollout: RolloutSpec | None,
    ) -> dict[str, WorkerGroup]:
        """Processes of every pool, then the engines, role by role."""
        keys = {role: self._key(role, placement) for role in placement.pool_of}
        wanted = list(dict.fromkeys(keys.values()))
        per_pool = {pool: sum(key[0] == pool for key in wanted) for pool in placement.pools}
        again = {key: self._restarts(key, placement, rollout) for key in wanted}
        actors = {
            key: self._create(placement.pools[key[0]], key[1], per_pool[key[0]], again[key])
            for key in wanted
        }
        crews = {
            key: self._crew(
                f"pool '{key[0]}', {key[1]}",
                placement.pools[key[0]].devices,
                actors[key],
                restarts=again[key],
            )
            for key in wanted
        }
        groups: dict[str, WorkerGroup] = {}
        for role, spec in engines.items():
            selected = self._config.role(role).engine
            groups[role] = self._add(
                "add_model", role, spec, selected, crews[keys[role]], placement.mesh_of[role]
            )
        if rollout is not None:
            mesh = placement.mesh_of[ROLLOUT]
            groups[ROLLOUT] = self._add(
                "add_rollout", ROLLOUT, rollout, self._config.rollout, crews[keys[ROLLOUT]], mesh
            )
        return groups

    def host(self, name: str, make: Callable[[], Any]) -> RayHosted:
        """One more process, without a device, for any object."""
        actor = WorkerActor.options(num_cpus=0, runtime_env=self._environment)
        crew = self._crew(name, 1, [actor.remote(self._boot, name)], device="cpu")
        payload = cloudpickle.dumps((name, make))
        self._everybody(crew, name, "start", lambda m: m.actor.add.remote("host", payload))
        return RayHosted(name, crew, self._transfer)

    @property
    def crews(self) -> Sequence[Crew]:
        """All that were started."""
        return self._crews

    def close(self) -> None:
        """End all processes and give the places back."""
        for crew in self._crews:
            crew.close(_CLOSE_S)
        for group in self._groups.values():
            remove_placement_group(group)
        self._resolver.close()

    # --- inside -------------------------------------------------------------------------------

    def _key(self, role: str, placement: Placement) -> tuple[str, str]:
        """Pool and strategy: roles that agree in both share processes."""
        pool = placement.pool_of[role]
        if role != ROLLOUT:
            return pool, self._config.role(role).strategy.name
        policy = next((r for r in placement.pool_of if r != ROLLOUT), None)
        if policy is not None and placement.pool_of[policy] == pool:
            return self._key(policy, placement)
        return pool, ROLLOUT

    def _restarts(
        self, key: tuple[str, str], placement: Placement, rollout: RolloutSpec | None
    ) -> Restarts | None:
        """How replicas of a pool of their own come back; None: its workers end together."""
        config, options = self._config, self._config.run
        if key[1] != ROLLOUT or rollout is None or not options.max_restarts:
            return None
        if not config.checkpoint.load().lets_join(config.checkpoint.config):
            return None
        wait, limit = options.restart_wait_s, self._options.start_timeout_s
        replicas = rollout.replicas(placement.mesh_of[ROLLOUT].size)
        return Restarts(options.max_restarts, wait, limit, replicas, _meeting)

    def _create(
        self, pool: ResourcePool, what: str, sharing: int, restarts: Restarts | None
    ) -> list[Any]:
        share = {kind: amount / sharing for kind, amount in self._need.resources.items()}
        group = self._groups[pool.name]
        # Ray cannot be sure to have what lies in its store when it starts a process again.
        boot = self._boot if restarts is None else self._plain_boot
        return [
            WorkerActor.options(
                num_cpus=share["CPU"],
                num_gpus=share.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank
                ),
                runtime_env=self._environment,
                max_restarts=restarts.by_ray if restarts is not None else 0,
            ).remote(boot, f"{pool.name}/{what} {rank}")
            for rank in range(pool.size)
        ]

    def _crew(
        self,
        name: str,
        per_node: int,
        actors: Sequence[Any],
        device: str | None = None,
        restarts: Restarts | None = None,
    ) -> Crew:
        members = [Member(actor, rank) for rank, actor in enumerate(actors)]
        bound = Bound(self._options.call_timeout_s)
        if restarts is None:
            crew = Crew(name, members, self._resolver, bound)
        else:
            crew = ReplicaCrew(name, members, self._resolver, bound, restarts)
        self._crews.append(crew)
        crew.fellows = self._crews
        where = self._locate(crew)
        crew.members = [Member(m.actor, m.rank, where[m.rank]) for m in crew.members]
        meeting = _meeting(where)
        device = device or ("cuda" if self._need.kind == "GPU" else "cpu")
        base = RankInfo(
            world=len(actors),
            device=device,
            threads=self._options.threads if device == "cpu" else 0,
            init_method=meeting if len(actors) > 1 else None,
        )

        def start(member: Member) -> Any:
            rank = self._rank(base, member, per_node, crew.fellows_of(member.rank))
            return member.actor.start.remote(pickle.dumps((rank, self._config.transfer)))

        self._everybody(crew, name, "start", start)
        return crew

    def _rank(
        self, base: RankInfo, member: Member, per_node: int, fellows: Sequence[int]
    ) -> RankInfo:
        """What a rank is told of itself; a replica that is started again meets elsewhere."""
        return replace(
            base,
            rank=member.rank,
            local_rank=member.rank % per_node,
            host=member.host,
            seed=self._config.seed + member.rank,
            init_method=member.meeting or base.init_method,
            meets=tuple(fellows) if member.meeting else (),
        )

    def _locate(self, crew: Crew) -> list[Where]:
        refs = [member.actor.where.remote() for member in crew.members]
        try:
            found: list[Where] = ray.get(refs, timeout=self._options.start_timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerError(
                crew.name,
                0,
                "?",
                f"its processes did not start in {self._options.start_timeout_s:g} s "
                "(cluster.start_timeout_s)",
            ) from error
        except ray.exceptions.RayError as error:
            raise translate(error, crew.name, crew.members[0]) from error
        return found

    def _add(
        self, how: str, role: str, spec: Any, engine: Selected, crew: Crew, mesh: Mesh
    ) -> RayGroup:
        payload = cloudpickle.dumps((role, spec, engine))
        self._everybody(crew, role, "setup", lambda m: m.actor.add.remote(how, payload))
        replicas = spec.replicas(mesh.size) if isinstance(spec, RolloutSpec) else ()
        return RayGroup(role, mesh, crew, engine.load(), self._transfer, replicas)

    def _everybody(self, crew: Crew, role: str, what: str, send: Callable[[Member], Any]) -> None:
        bound = Bound(self._options.start_timeout_s, "start_timeout_s")
        crew.call(role, what, lambda m: Sent(send(m)), lambda answers: None, bound).result()
        crew.told(send)


def _meeting(where: Sequence[Where]) -> str:
    """Where the ranks find each other: a file where all are on one node, else rank 0's port.

    A port that was free may be taken a moment later; a file cannot be.
    """
    first = where[0]
    if len({one.node_id for one in where}) > 1:
        return f"tcp://{_address(first.node_id) or first.host}:{first.port}"
    folder = ray._private.worker._global_node.get_session_dir_path()
    return f"file://{folder}/meeting-{os.urandom(8).hex()}"


def _address(node_id: str) -> str:
    found = [n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == node_id]
    return str(found[0]) if found else ""


def _user_files(config: Config) -> dict[str, bytes]:
    """Files that the user named as ``file.py:Class``, by path."""
    chosen = [one for _, one in selected_components(config)]
    paths = {one.target.rpartition(":")[0] for one in chosen if one.sha256}
    return {path: Path(path).read_bytes() for path in sorted(paths)}

"""``mapper: auto``: the best placement that the search finds for the run's own config."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import ConfigError, unknown_name
from rlframe.interfaces.cluster import ClusterInfo, Mapper, Placement
from rlframe.roles import roles_of
from rlframe_plugins.mappers.catalogue import Catalogue, Hardware, hardware_of, load_catalogue
from rlframe_plugins.mappers.compare import remember
from rlframe_plugins.mappers.dataflow import ROLLOUT
from rlframe_plugins.mappers.explain import shortage
from rlframe_plugins.mappers.fixed import meshes
from rlframe_plugins.mappers.pins import check_pins, pinned
from rlframe_plugins.mappers.planner import Planned, make_plans
from rlframe_plugins.mappers.report import planned_text
from rlframe_plugins.mappers.runs import measured_together, run_units, run_workload
from rlframe_plugins.mappers.space import Wishes
from rlframe_plugins.mappers.written import fitted

__all__ = ["AutoMapper"]

_LOG = logging.getLogger("rlframe.mapper")


class AutoMapper(Mapper):
    """Searches pools and parallel sizes by the models' configs and the run's workload."""

    @dataclass(frozen=True)
    class Config:
        """Options of ``mapper: auto``."""

        device: str = "auto"
        """Device kind of the catalogue, as a100-80g; auto takes it from the machine."""
        network: str = "auto"
        """Network of the catalogue, as ib-200; auto takes the device's own."""
        devices: str = ""
        """File with further devices, networks and constants (see rlframe map --calibrate)."""
        host_gib: float = 0.0
        """GiB of host memory a node, at least 0; 0 takes that of the catalogue."""
        prompt_tokens: int = 0
        """Tokens of a prompt on average, at least 0; 0 takes data.max_prompt_tokens."""
        response_tokens: str = ""
        """Length or distribution of responses, tokens; empty takes rollout.max_new_tokens."""
        staleness: int = 1
        """Steps that an overlapping scheduler may run ahead, at least 1."""
        sizes: Literal["config", "search"] = "config"
        """Parallel sizes, sharding, recomputation, micro-batches: the config's, or searched too."""
        together: tuple[str, ...] = ()
        """Sets that must share devices, as policy+rollout."""
        pin: tuple[str, ...] = ()
        """The placement itself, as policy=train:dp8,pp1,tp1; nothing is searched then."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "host_gib", 0)
            check_range(self, "prompt_tokens", 0)
            check_range(self, "staleness", 1)
            check_pins(self.pin)

    def place(self, roles: Sequence[str], config: FitConfig, cluster: ClusterInfo) -> Placement:
        """See :class:`Mapper`. The plan is logged under ``rlframe.mapper``."""
        return self.settle(roles, config, cluster)[0]

    def settle(
        self, roles: Sequence[str], config: FitConfig, cluster: ClusterInfo
    ) -> tuple[Placement, FitConfig]:
        """See :class:`Mapper`: with ``sizes=search`` the config has those that were found."""
        if self.config.pin:
            return pinned(self.config.pin, roles, config, cluster), config
        planned = self.plan(roles, config, cluster)
        best, text = planned.plans[0], planned_text(planned)
        if self.config.sizes == "search":
            config = fitted(config, best)
        _LOG.info("mapper auto:\n%s", text)
        remember(config, f"mapper auto: {text}", best.stages)
        found = best.placement()
        mesh_of = meshes(config, found.pools, found.pool_of)
        return Placement(found.pools, found.pool_of, mesh_of), config

    def plan(
        self, roles: Sequence[str], config: FitConfig, cluster: ClusterInfo, plans: int = 1
    ) -> Planned:
        """Search; at least one plan. Raises ``ConfigError`` where nothing fits."""
        catalogue = load_catalogue(self.config.devices or None)
        hardware = self._hardware(catalogue, cluster)
        work = run_workload(config, self.config)
        units = run_units(roles, config, work, free=self.config.sizes == "search")
        _check_together(self.config.together, config)
        beside = measured_together([role for role in roles_of(config) if role.name in roles])
        wishes = Wishes(
            staleness=None if config.scheduler.name == "sync" else self.config.staleness,
            together=(
                *(frozenset(group.split("+")) for group in self.config.together),
                *beside,
            ),
        )
        planned = make_plans(units, hardware, work, wishes, plans)
        if not planned.plans:
            raise ConfigError(f"mapper auto: {shortage(planned, catalogue)}")
        return planned

    def _hardware(self, catalogue: Catalogue, cluster: ClusterInfo) -> Hardware:
        name = self.config.device
        if name == "auto":
            name = _device_kind(cluster.device, catalogue)
        if name not in catalogue.devices:
            raise ConfigError(f"mapper.device: {unknown_name('device', name, catalogue.devices)}")
        network = None if self.config.network == "auto" else self.config.network
        if network is not None and network not in catalogue.networks:
            known = catalogue.networks
            raise ConfigError(f"mapper.network: {unknown_name('network', network, known)}")
        found = hardware_of(catalogue, cluster.nodes, cluster.devices_per_node, name, network)
        return found.with_host(self.config.host_gib)


def _device_kind(device: str, catalogue: Catalogue) -> str:
    """The catalogue's name of what the cluster says it has, or of this machine's first GPU."""
    if device in catalogue.devices:
        return device
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            words = torch.cuda.get_device_name(0).lower()
            size = torch.cuda.get_device_properties(0).total_memory / 2**30
            fitting = [
                (abs(d.memory_gib - size), name)
                for name, d in catalogue.devices.items()
                if name.split("-")[0] in words
            ]
            if fitting:
                return min(fitting)[1]
    raise ConfigError(
        f"mapper auto does not know the device '{device}': name one with mapper.device=NAME "
        f"({', '.join(catalogue.devices)}) or describe it in a file for mapper.devices"
    )


def _check_together(groups: Sequence[str], config: FitConfig) -> None:
    roles = roles_of(config)
    known = [*(role.name for role in roles), ROLLOUT]
    for name in (name for group in groups for name in group.split("+")):
        if name not in known:
            raise ConfigError(f"mapper.together: {unknown_name('role', name, known)}")

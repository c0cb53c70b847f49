"""``mapper: auto``: the best placement that the search finds for the run's own config."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlframe.config import Config as FitConfig
from rlframe.config import check_range
from rlframe.errors import ConfigError, unknown_name
from rlframe.interfaces.cluster import ClusterInfo, Mapper, Placement, ResourcePool
from rlframe.protocol import Mesh
from rlframe.roles import roles_of
from rlframe_plugins.mappers.catalogue import Catalogue, Hardware, hardware_of, load_catalogue
from rlframe_plugins.mappers.compare import remember
from rlframe_plugins.mappers.dataflow import ROLLOUT, Unit, units_of
from rlframe_plugins.mappers.explain import shortage
from rlframe_plugins.mappers.grid import SCHEMES_OF
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.mappers.planner import Planned, make_plans
from rlframe_plugins.mappers.report import planned_text
from rlframe_plugins.mappers.space import Wishes
from rlframe_plugins.mappers.workload import Lengths, Workload, parse_lengths

__all__ = ["AutoMapper", "run_units", "run_workload"]

_PIN = re.compile(r"(\w[\w.-]*)=([\w.-]+):dp(\d+),pp(\d+),tp(\d+)")
_SPLITTING = ("vllm", "sglang")
"""Rollout engines that split a model over devices; others live inside the workers."""
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
        prompt_tokens: int = 0
        """Tokens of a prompt on average, at least 0; 0 takes data.max_prompt_tokens."""
        response_tokens: str = ""
        """Length or distribution of responses, tokens; empty takes rollout.max_new_tokens."""
        staleness: int = 1
        """Steps that an overlapping scheduler may run ahead, at least 1."""
        together: tuple[str, ...] = ()
        """Sets that must share devices, as policy+rollout."""
        pin: tuple[str, ...] = ()
        """The placement itself, as policy=train:dp8,pp1,tp1; nothing is searched then."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "prompt_tokens", 0)
            check_range(self, "staleness", 1)
            for pin in self.pin:
                if not _PIN.fullmatch(pin):
                    raise ValueError(f"pin must be ROLE=POOL:dpD,ppP,tpT, not {pin!r}")

    def place(self, roles: Sequence[str], config: FitConfig, cluster: ClusterInfo) -> Placement:
        """See :class:`Mapper`. The plan is logged under ``rlframe.mapper``."""
        if self.config.pin:
            return _pinned(self.config.pin, roles, config, cluster)
        planned = self.plan(roles, config, cluster)
        text = planned_text(planned)
        _LOG.info("mapper auto:\n%s", text)
        remember(config, f"mapper auto: {text}", planned.plans[0].stages)
        return planned.plans[0].placement()

    def plan(
        self, roles: Sequence[str], config: FitConfig, cluster: ClusterInfo, plans: int = 1
    ) -> Planned:
        """Search; at least one plan. Raises ``ConfigError`` where nothing fits."""
        catalogue = load_catalogue(self.config.devices or None)
        hardware = self._hardware(catalogue, cluster)
        work = run_workload(config, self.config)
        units = run_units(roles, config, work)
        _check_together(self.config.together, config)
        wishes = Wishes(
            staleness=None if config.scheduler.name == "sync" else self.config.staleness,
            together=tuple(frozenset(group.split("+")) for group in self.config.together),
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
        return hardware_of(catalogue, cluster.nodes, cluster.devices_per_node, name, network)


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


def run_workload(config: FitConfig, options: Any) -> Workload:
    """The workload of a run's config; ``options`` are those of :class:`AutoMapper`."""
    longest = config.rollout.config.max_new_tokens
    text = options.response_tokens
    prompts = config.data.prompts_per_step
    algo = config.algo.config
    per_step = min(getattr(algo, "minibatch_prompts", 0), prompts)
    return Workload(
        prompts=prompts,
        samples=getattr(algo, "samples_per_prompt", 1),
        prompt_tokens=options.prompt_tokens or config.data.max_prompt_tokens,
        responses=parse_lengths(text) if text else Lengths((float(longest),)),
        minibatch_prompts=per_step if per_step and prompts % per_step == 0 else 0,
        epochs=getattr(algo, "epochs", 1),
    )


def run_units(roles: Sequence[str], config: FitConfig, work: Workload) -> tuple[Unit, ...]:
    """What a run places: its algorithm's roles among ``roles``, and the rollout if it is one."""
    specs = [spec for spec in roles_of(config) if spec.name in roles]
    named = {spec.name: config.role(spec.name).strategy.name for spec in specs}
    for role, strategy in named.items():
        if strategy not in SCHEMES_OF:
            raise ConfigError(
                f"mapper auto has no memory model of strategy '{strategy}' (role '{role}'): use "
                f"--mapper fixed, or one of {', '.join(SCHEMES_OF)}"
            )
    return units_of(
        specs,
        {spec.name: load_model(config.role(spec.name).model.path) for spec in specs},
        work,
        rollout=ROLLOUT in roles,
        strategies={role: (strategy,) for role, strategy in named.items()},
        micro_tokens=config.optim.tokens_per_microbatch,
        whole=config.rollout.name not in _SPLITTING,
    )


def _check_together(groups: Sequence[str], config: FitConfig) -> None:
    roles = roles_of(config)
    known = [*(role.name for role in roles), ROLLOUT]
    for name in (name for group in groups for name in group.split("+")):
        if name not in known:
            raise ConfigError(f"mapper.together: {unknown_name('role', name, known)}")


def _pinned(
    pins: Sequence[str], roles: Sequence[str], config: FitConfig, cluster: ClusterInfo
) -> Placement:
    """The placement that the config pins, checked against its pools and the cluster."""
    pools = {n: ResourcePool(n, p.nodes, p.devices) for n, p in config.pools.items()}
    pool_of, mesh_of = {}, {}
    for pin in pins:
        match = _PIN.fullmatch(pin)
        assert match is not None
        role, pool = match[1], match[2]
        if pool not in pools:
            raise ConfigError(f"mapper.pin '{pin}': {unknown_name('pool', pool, pools)}")
        mesh = Mesh(dp=int(match[3]), pp=int(match[4]), tp=int(match[5]))
        if mesh.size != pools[pool].size:
            raise ConfigError(
                f"mapper.pin '{pin}': {mesh.size} ranks, but pool '{pool}' has "
                f"{pools[pool].size} devices"
            )
        pool_of[role], mesh_of[role] = pool, mesh
    missing = [role for role in roles if role not in pool_of]
    if missing:
        raise ConfigError(f"mapper.pin names no place for '{missing[0]}'")
    used = {name: pool for name, pool in pools.items() if name in pool_of.values()}
    asked = sum(pool.size for pool in used.values())
    widest = max(pool.devices for pool in used.values())
    if asked > cluster.nodes * cluster.devices_per_node or widest > cluster.devices_per_node:
        raise ConfigError(
            f"mapper.pin asks for {asked} devices, at most {widest} a node; there are "
            f"{cluster.nodes} x {cluster.devices_per_node}"
        )
    chosen = {role: mesh_of[role] for role in roles}
    return Placement(used, {role: pool_of[role] for role in roles}, chosen)

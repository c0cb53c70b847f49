"""Devices, networks and constants: plain data that users extend, read into frozen values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError, unknown_name

__all__ = [
    "Catalogue",
    "Constants",
    "Device",
    "Hardware",
    "Network",
    "load_catalogue",
    "parse_hardware",
]

GIB = 1024**3
_HARDWARE = re.compile(r"(?:(\d+)x)?(\d+):([\w.-]+?)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class Device:
    """One accelerator. Bandwidths are 10^9 B/s in one direction, ``tflops`` dense 10^12 FLOP/s.

    ``host_gib`` is the host memory of a node over its devices.
    """

    memory_gib: float
    host_gib: float
    tflops: float
    memory_gbs: float
    link_gbs: float
    host_gbs: float
    network: str
    weight_bytes: int = 2
    source: str = ""


@dataclass(frozen=True)
class Network:
    """What a node has to talk to others: 10^9 B/s in one direction, all adapters together."""

    gbs: float
    source: str = ""


@dataclass(frozen=True)
class Constants:
    """The constants of ``constants.yaml``, where each has its unit and source."""

    gemm_share: float
    memory_share: float
    link_share: float
    network_share: float
    host_share: float
    link_latency_s: float
    network_latency_s: float
    launch_s: float
    layer_kernels: float
    graph_launch_s: float
    decode_round_s: float
    elementwise_passes: float
    optimizer_traffic: float
    optimizer_step_s: float
    gradient_overlap: float
    call_s: float
    stage_s: float
    wake_s: float
    context_gib: float
    fragmentation_share: float
    host_memory_share: float
    logits_chunk_tokens: float
    logits_bytes: float
    gathered_layers: float
    column_bytes: float
    scale_collect: float
    scale_prepare: float
    scale_learn: float
    scale_publish: float


@dataclass(frozen=True)
class Catalogue:
    """Everything that can be named, and the constants with unit, basis and source."""

    devices: Mapping[str, Device]
    networks: Mapping[str, Network]
    table: Mapping[str, Mapping[str, Any]]

    @property
    def constants(self) -> Constants:
        """The values alone."""
        return Constants(**{name: float(row["value"]) for name, row in self.table.items()})


@dataclass(frozen=True)
class Hardware:
    """A cluster as the simulators see it. Rates are B/s and FLOP/s that a program reaches.

    ``memory`` is bytes of a device, ``host_memory`` bytes of a node's host.
    """

    nodes: int
    devices: int
    name: str
    memory: float
    host_memory: float
    flops: float
    memory_rate: float
    link_rate: float
    node_rate: float
    host_rate: float
    weight_bytes: int
    constants: Constants

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices

    @property
    def capacity(self) -> float:
        """Bytes of a device that models may take."""
        usable = self.memory * (1 - self.constants.fragmentation_share)
        return usable - self.constants.context_gib * GIB

    @property
    def host_capacity(self) -> float:
        """Bytes of a node's host memory that models may take."""
        return self.host_memory * self.constants.host_memory_share

    def with_host(self, gib: float) -> Hardware:
        """The same machine with ``gib`` GiB of host memory a node; 0 leaves it as it is."""
        return replace(self, host_memory=gib * GIB) if gib else self

    def of(self, nodes: int) -> Hardware:
        """The same machine with another number of nodes."""
        return replace(self, nodes=nodes)


def _read(path: str | Path) -> dict[str, Any]:
    import yaml

    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"catalogue {path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"catalogue {path}: must hold 'devices', 'networks' or 'constants'")
    return data


def _packaged(name: str) -> dict[str, Any]:
    import yaml

    text = (files(__package__) / name).read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def _rows(kind: type[Any], rows: Mapping[str, Any], origin: str) -> dict[str, Any]:
    built = {}
    for name, row in rows.items():
        try:
            built[name] = kind(**row)
        except TypeError:
            names = ", ".join(f.name for f in fields(kind))
            raise ConfigError(f"{origin}: '{name}' must have exactly {names}") from None
    return built


def load_catalogue(extra: str | None = None) -> Catalogue:
    """The shipped catalogue, entries of the file ``extra`` on top.

    Raises ``ConfigError`` for a file that cannot be read or an entry of the wrong shape.
    """
    shipped = _packaged("devices.yaml")
    mine = _read(extra) if extra else {}
    wrong = set(mine) - {"devices", "networks", "constants"}
    if wrong:
        known = ("devices", "networks", "constants")
        raise ConfigError(f"catalogue {extra}: {unknown_name('section', wrong.pop(), known)}")
    table = _packaged("constants.yaml")
    for name, row in mine.get("constants", {}).items():
        if name not in table:
            raise ConfigError(f"catalogue {extra}: {unknown_name('constant', name, table)}")
        table[name] = {**table[name], **row}
    return Catalogue(
        {**_rows(Device, shipped["devices"], "devices.yaml"),
         **_rows(Device, mine.get("devices", {}), str(extra))},
        {**_rows(Network, shipped["networks"], "devices.yaml"),
         **_rows(Network, mine.get("networks", {}), str(extra))},
        table,
    )  # fmt: skip


def parse_hardware(text: str, catalogue: Catalogue) -> Hardware:
    """Read ``16x8:a100-80g``: nodes x devices a node : device, ``@network`` to name another.

    Raises ``ConfigError`` for another form, an unknown device or network.
    """
    match = _HARDWARE.fullmatch(text)
    if match is None or int(match[1] or 1) < 1 or int(match[2]) < 1:
        raise ConfigError(
            f"hardware '{text}' must be NODESxDEVICES:KIND, as 16x8:a100-80g or 4x8:h100@ib-200"
        )
    if match[3] not in catalogue.devices:
        raise ConfigError(unknown_name("device", match[3], catalogue.devices))
    network = match[4] or catalogue.devices[match[3]].network
    if network not in catalogue.networks:
        raise ConfigError(unknown_name("network", network, catalogue.networks))
    return hardware_of(catalogue, int(match[1] or 1), int(match[2]), match[3], network)


def hardware_of(
    catalogue: Catalogue, nodes: int, devices: int, kind: str, network: str | None = None
) -> Hardware:
    """The cluster of ``nodes`` x ``devices`` of a kind that the catalogue has."""
    device, c = catalogue.devices[kind], catalogue.constants
    return Hardware(
        nodes=nodes,
        devices=devices,
        name=kind,
        memory=device.memory_gib * GIB,
        host_memory=device.host_gib * GIB * devices,
        flops=device.tflops * 1e12 * c.gemm_share,
        memory_rate=device.memory_gbs * 1e9 * c.memory_share,
        link_rate=device.link_gbs * 1e9 * c.link_share,
        node_rate=catalogue.networks[network or device.network].gbs * 1e9 * c.network_share,
        host_rate=device.host_gbs * 1e9 * c.host_share,
        weight_bytes=device.weight_bytes,
        constants=c,
    )

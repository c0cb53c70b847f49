"""MapperKit over every registered mapper."""

from __future__ import annotations

import pytest
import yaml

from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import ClusterInfo
from rlframe.testing.mapper_kit import MapperKit

CPUS = (ClusterInfo(1, 1, "cpu"), ClusterInfo(1, 4, "cpu"), ClusterInfo(2, 4, "cpu"))
TRIED = {"fixed", "auto"}


def test_every_registered_mapper_is_tried():
    assert set(PluginHost().load().components("mapper")) == TRIED


class TestFixed(MapperKit):
    values = {"mapper.name": "fixed"}
    clusters = CPUS
    impossible = {"pools": {"train": {"nodes": 1, "devices": 2}}}


class TestFixedTwoPools(MapperKit):
    values = {
        "mapper.name": "fixed",
        "pools": {"train": {"devices": 1}, "other": {"devices": 2}},
        "rollout.pool": "other",
    }
    clusters = CPUS[1:]
    impossible = {"pools": {"train": {"nodes": 3, "devices": 2}, "other": {"devices": 4}}}


class TestAuto(MapperKit):
    values = {"mapper.name": "auto", "strategy.name": "fsdp"}
    clusters = CPUS

    @pytest.fixture(autouse=True)
    def _tiny_device(self, tmp_path):
        """A device of 1 MiB beyond what a worker itself takes."""
        devices = {
            "pebble": {
                "memory_gib": 2.11,
                "host_gib": 4,
                "tflops": 0.1,
                "memory_gbs": 10,
                "link_gbs": 1,
                "host_gbs": 1,
                "network": "eth-10",
                "weight_bytes": 4,
            }
        }
        file = tmp_path / "devices.yaml"
        file.write_text(yaml.safe_dump({"devices": devices}))
        self.impossible = {"mapper.devices": str(file), "mapper.device": "pebble"}


class TestAutoTogether(MapperKit):
    values = {"mapper.name": "auto", "strategy.name": "fsdp", "mapper.together": ["policy+rollout"]}
    clusters = CPUS


class TestAutoPinned(MapperKit):
    values = {
        "mapper.name": "auto",
        "strategy.name": "fsdp",
        "pools": {"train": {"devices": 2}},
        "roles": {"reference": {"strategy": {"name": "fsdp", "tp": 2}}},
        "mapper.pin": [
            "policy=train:dp2,pp1,tp1",
            "reference=train:dp1,pp1,tp2",
            "rollout=train:dp2,pp1,tp1",
        ],
    }
    clusters = CPUS[1:]
    impossible = {"pools": {"train": {"nodes": 3, "devices": 2}}}

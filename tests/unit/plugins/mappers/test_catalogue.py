from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from rlframe.errors import ConfigError
from rlframe_plugins.mappers.catalogue import Constants, load_catalogue, parse_hardware
from rlframe_plugins.mappers.workload import Workload, parse_lengths


def test_every_constant_has_value_unit_basis_and_source():
    table = load_catalogue().table
    assert set(table) == {field.name for field in fields(Constants)}
    for name, row in table.items():
        assert set(row) == {"value", "unit", "basis", "source"}, name
        assert row["basis"] in ("data-sheet", "published", "measured", "assumed"), name
        assert float(row["value"]) >= 0
        assert row["unit"]
        assert row["source"]


def test_every_device_names_a_network_and_a_source():
    catalogue = load_catalogue()
    for name, device in catalogue.devices.items():
        assert device.network in catalogue.networks, name
        assert device.source, name


def test_hardware():
    catalogue = load_catalogue()
    machine = parse_hardware("16x8:a100-80g@ib-200", catalogue)
    assert (machine.nodes, machine.devices, machine.size) == (16, 8, 128)
    assert machine.flops == pytest.approx(312e12 * 0.8)
    assert machine.node_rate == pytest.approx(25e9 * 0.9)
    assert parse_hardware("8:h100", catalogue).nodes == 1
    assert machine.capacity < 80 * 2**30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("16x8", "NODESxDEVICES:KIND"),
        ("0x8:h100", "NODESxDEVICES:KIND"),
        ("2x8:a100-80", "Did you mean 'a100-80g'"),
        ("2x8:h100@ib-20", "unknown network 'ib-20'"),
    ],
)
def test_wrong_hardware(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_hardware(text, load_catalogue())


def test_users_extend_the_catalogue(tmp_path):
    file = tmp_path / "mine.yaml"
    mine = {
        "devices": {
            "mine": {
                "memory_gib": 10,
                "host_gib": 4,
                "tflops": 1,
                "memory_gbs": 1,
                "link_gbs": 1,
                "host_gbs": 1,
                "network": "wire",
            }
        },
        "networks": {"wire": {"gbs": 3}},
        "constants": {"gemm_share": {"value": 0.5}},
    }
    file.write_text(yaml.safe_dump(mine))
    catalogue = load_catalogue(str(file))
    machine = parse_hardware("2x4:mine", catalogue)
    assert machine.flops == pytest.approx(0.5e12)
    assert machine.node_rate == pytest.approx(3e9 * 0.9)
    assert "h100" in catalogue.devices
    assert catalogue.table["gemm_share"]["unit"] == load_catalogue().table["gemm_share"]["unit"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("devices: {x: {memory_gib: 1}}", "'x' must have exactly"),
        ("constants: {gem_share: {value: 1}}", "Did you mean 'gemm_share'"),
        ("device: {}", "Did you mean 'devices'"),
        ("[1]", "must hold"),
        ("a: [", "catalogue"),
    ],
)
def test_wrong_files(tmp_path, content, words):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=words):
        load_catalogue(str(file))


def test_lengths():
    assert parse_lengths("1024").mean == 1024
    uniform = parse_lengths("uniform:100-300")
    assert uniform.mean == pytest.approx(200)
    assert uniform.longest <= 300
    heavy = parse_lengths("geometric:mean=60,max=279")
    assert 50 < heavy.mean < 62
    assert heavy.in_flight > heavy.mean / 2
    assert parse_lengths("lognormal:mean=600,sigma=1,max=4096").mean == pytest.approx(600, rel=0.15)


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths"
    file.write_text("\n".join(map(str, range(1, 101))))
    assert parse_lengths(str(file)).mean == pytest.approx(50, abs=3)


@pytest.mark.parametrize("text", ["0", "-3", "uniform:3", "geometric:mean=3", "/no/such", "x:1"])
def test_wrong_lengths(text):
    with pytest.raises(ConfigError, match="response tokens"):
        parse_lengths(text)


def test_a_workload_is_checked():
    with pytest.raises(ConfigError, match="multiple"):
        Workload(prompts=10, minibatch_prompts=3)
    with pytest.raises(ConfigError, match="at least 1"):
        Workload(prompts=0)
    assert Workload(prompts=4, samples=2, extra=1).generated == 12

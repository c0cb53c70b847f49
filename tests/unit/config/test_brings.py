"""Defaults that come with another choice: a cluster that brings its transfer engine."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.host.host import PluginHost

ROAD = {
    "flag": Asked(flags={"cluster": "ray"}),
    "dotlist": Asked(dotlist=["cluster.name=ray"]),
    "python": Asked(values={"cluster": {"name": "ray", "cpus": 0.5}}),
}


@pytest.mark.parametrize("asked", ROAD.values(), ids=ROAD)
def test_a_cluster_brings_its_transfer(asked):
    loaded = load_config(PluginHost().load(), asked)
    assert (loaded.config.cluster.name, loaded.config.transfer.name) == ("ray", "ray")
    assert "defaults" in loaded.tree["transfer"]["name"].source


def test_what_is_said_wins():
    asked = Asked(flags={"cluster": "ray", "transfer": "inline"})
    assert load_config(PluginHost().load(), asked).config.transfer.name == "inline"


def test_other_clusters_bring_nothing():
    assert load_config(PluginHost().load(), Asked()).config.transfer.name == "inline"

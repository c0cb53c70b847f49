"""Defaults that come with another choice: a cluster that brings its transfer engine."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
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


def test_the_default_model_brings_what_suits_it():
    """VAPO's alpha for short answers; the paper's stays with any other model."""
    host, flags = PluginHost().load(), {"algo": "vapo"}

    def alpha(**asked):
        return load_config(host, Asked(**asked)).config.algo.config.length_alpha

    assert alpha(flags=flags) == 5.0
    assert alpha(flags=flags | {"model": "another/model"}) == 0.05
    assert alpha(flags=flags, dotlist=["algo.length_alpha=0.1"]) == 0.1


def test_safe_rlhf_has_a_cost_on_the_shipped_task_only():
    host = PluginHost().load()
    config = load_config(host, Asked(flags={"algo": "safe-rlhf"})).config
    assert [part.label for part in config.reward.parts] == ["exact", "length"]
    assert config.algo.config.threshold == 0.25
    other = Asked(flags={"algo": "safe-rlhf", "model": "another/model"})
    with pytest.raises(ConfigError, match="cost"):
        load_config(host, other)

"""Where roles go is found before data and models load; nothing is left where they do not fit.

The cluster here is one that tells what it was asked.
"""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.place import find_place
from rlframe_plugins.clusters.inline import InlineCluster


class Told(InlineCluster):
    """Remembers calls; refuses placements while ``full``."""

    calls: list[str] = []  # noqa: RUF012
    full = False

    def check(self, placement):
        self.calls.append(f"check {sorted(placement.pool_of)}")
        if self.full:
            raise ConfigError("the pools do not fit: asked for 3, there are 2")

    def close(self):
        self.calls.append("close")


def config(**more):
    values = {"cluster": {"name": "tests.unit.test_place:Told"}, **more}
    return load_config(PluginHost().load(), Asked(values=values)).config


@pytest.fixture
def calls():
    Told.calls.clear()
    yield Told.calls
    Told.full = False


def made(config):
    return config.algo.load()(config.algo.config)


def test_every_role_and_the_rollout_are_placed(calls):
    asked = config(algo={"name": "ppo"})
    place = find_place(asked, made(asked))
    assert set(place.placement.pool_of) == {"policy", "critic", "rollout"}
    assert place.info.device in ("cpu", "cuda")
    assert calls == ["check ['critic', 'policy', 'rollout']"]


def test_a_method_without_sampling_needs_no_rollout(calls):
    asked = config(algo="sft")
    assert "rollout" not in find_place(asked, made(asked)).placement.pool_of


@pytest.mark.parametrize("reason", ["too many devices", "refused by the cluster"])
def test_what_does_not_fit_closes_the_cluster(calls, reason):
    Told.full = reason == "refused by the cluster"
    asked = config(pools={"train": {"devices": 1 if Told.full else 3}})
    with pytest.raises(ConfigError, match=r"the pools do not fit: asked for"):
        find_place(asked, made(asked))
    assert calls[-1] == "close"

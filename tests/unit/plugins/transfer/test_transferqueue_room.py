"""Which clusters have room for TransferQueue, and what is said without it; it need not be there."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError, PluginError
from rlframe.host import packages
from rlframe.host.host import PluginHost

pytest.importorskip("ray")

from rlframe_plugins.clusters.ray.nodes import Node
from rlframe_plugins.transfer.transferqueue import TransferQueueTransfer
from rlframe_plugins.transfer.transferqueue_actors import room_for


def nodes(*free):
    return [Node(f"n{place}", f"host{place}", 4, one) for place, one in enumerate(free)]


@pytest.mark.parametrize(
    ("free", "units", "fits"),
    [
        ((2,), 1, True),
        ((1,), 1, False),
        ((4,), 3, True),
        ((4,), 4, False),
        ((1, 1), 1, True),
        ((0, 4), 1, False),  # the first unit goes to the first node, whatever it has
        ((1, 2), 2, True),
        ((1, 1), 2, False),
        ((2, 1), 3, False),
        ((2, 2), 3, True),
        ((), 1, False),
    ],
)
def test_units_go_to_the_nodes_in_turn_and_the_controller_to_any(free, units, fits):
    assert room_for(nodes(*free), units) == fits


def test_without_the_package_one_line_says_what_installs_it(monkeypatch):
    there = packages._is_there
    monkeypatch.setattr(packages, "_is_there", lambda n: n != "transfer_queue" and there(n))
    asked = Asked(flags={"transfer": "transferqueue", "cluster": "ray"})
    with pytest.raises(PluginError) as caught:
        load_config(PluginHost().load(), asked)
    assert str(caught.value) == (
        "transfer 'transferqueue' needs the package 'transfer_queue': "
        "pip install 'rlframe[transferqueue]'"
    )


def test_without_ray_it_says_which_cluster_it_needs():
    with pytest.raises(ConfigError, match="use --cluster ray"):
        TransferQueueTransfer().start()


@pytest.mark.parametrize("wrong", [{"units": 0}, {"start_timeout_s": 0.0}, {"timeout_s": 0.0}])
def test_options_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TransferQueueTransfer.Config(**wrong)

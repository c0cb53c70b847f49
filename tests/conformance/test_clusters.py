"""Every registered cluster passes the kit."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from rlframe.batching.packed import Packed
from rlframe.calling.protocol import Protocol, protocol
from rlframe.host.host import current_host
from rlframe.testing import ClusterKit
from rlframe.testing.echo import EchoEngine

NAMES = sorted(current_host().components("cluster"))
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """One Ray for all tests of this file, as when a caller has one already."""
    if find_spec("ray") is None:
        yield
        return
    from rlframe_plugins.clusters.ray.session import Session, worker_environment

    session = Session(logical_cpus=4, environment=worker_environment(1, one_node=True))
    yield
    session.close()


def _kit(name: str) -> type[ClusterKit]:
    marks = [] if name == "inline" else [pytest.mark.dist]
    values = {"cluster": {"name": name}}
    return type(
        f"Test_{name}", (ClusterKit,), {"values": values, "pytestmark": marks, "__test__": True}
    )


globals().update({f"Test_{name}": _kit(name) for name in NAMES})


def test_first_party_clusters_are_registered():
    assert {"inline", "ray"} <= set(NAMES)


TURNED = Protocol(
    "TURNED",
    chunks=lambda mesh: mesh.size,
    chunk_of=lambda mesh, rank: (rank + 1) % mesh.size,
    collected=lambda mesh: tuple((chunk - 1) % mesh.size for chunk in range(mesh.size)),
    combine="concat",
)
"""A stranger's protocol: every rank does what the rank after it would have done."""


class Stranger(EchoEngine):
    """An engine of another package, with protocols of its own on its methods."""

    @protocol(TURNED)
    def turned(self, batch):
        """Column ``scores``: the rank that made the row."""
        return {"scores": Packed(np.full(len(batch), self.rank.rank, np.float32))}

    @protocol(replace(TURNED, name="TURNED_MEAN", combine="mean"))
    def mean_rank(self, batch):
        """A figure."""
        return {"rank": float(self.rank.rank)}


@pytest.mark.parametrize("name", ["inline", pytest.param("ray", marks=pytest.mark.dist)])
def test_a_protocol_of_a_plugin_works_like_the_eight(name):
    class Theirs(ClusterKit):
        values = {"cluster": {"name": name}, "model.engine": f"{__name__}:Stranger"}

    with Theirs().start() as started:
        batch = started.batch(6)
        ranks = started.groups["policy"].mesh.size
        plain = started.call("policy", "rows", batch)
        made = batch.add_handles(started.call("policy", "turned", batch))
        by_rank = [
            sorted(int(g) for g, r in zip(made["group_ids"], made["scores"], strict=True) if r == n)
            for n in range(ranks)
        ]
        assert by_rank == [sorted(plain[(n + 1) % ranks]) for n in range(ranks)]
        assert started.call("policy", "mean_rank", batch) == {"rank": (ranks - 1) / 2}

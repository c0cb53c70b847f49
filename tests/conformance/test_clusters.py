"""Every registered cluster passes the kit."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rlframe.host.host import current_host
from rlframe.testing import ClusterKit

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

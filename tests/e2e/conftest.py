"""What several end-to-end files share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def one_ray():
    """One Ray for a file, as when a notebook has started one."""
    from rlframe_plugins.clusters.ray.session import Session, worker_environment

    session = Session(logical_cpus=4, environment=worker_environment(1, one_node=True))
    yield
    session.close()

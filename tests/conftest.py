"""What holds for all tests: GPU tests skip themselves, and nothing reads or writes outside."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples on every machine, however slow it is.
settings.register_profile(
    "rlframe", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rlframe")


def pytest_collection_modifyitems(items):
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _own_host():
    """A test of the command line leaves no plugin host of its own to the tests after it."""
    from rlframe.host import host

    before = list(host._current)
    yield
    host._current[:] = before

"""A local Ray listens on more than loopback, so that it lets in nobody without its token."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

JOIN = """
import sys, ray
ray.init(address=sys.argv[1], configure_logging=False, log_to_driver=False)
print("let in to", len(ray.nodes()), "node")
"""


def join(address, **environment):
    """Another process joins the cluster, as anyone who reaches its port could."""
    return subprocess.run(
        [sys.executable, "-c", JOIN, address],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_who_has_not_the_token_is_not_let_in(one_ray):
    address = ray.get_runtime_context().gcs_address
    friend = join(address)
    assert "let in to 1 node" in friend.stdout, friend.stderr
    stranger = join(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert stranger.returncode != 0
    assert "let in" not in stranger.stdout
    assert address in stranger.stderr

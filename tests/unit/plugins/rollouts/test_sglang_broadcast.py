"""Weights of the rollout sglang by broadcast, over real HTTP and gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlframe.errors import RolloutError
from rlframe.requests import Request
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.sglang.engine import SGLangRollout
from rlframe_plugins.rollouts.sglang.weights import buckets
from tests.unit.plugins.rollouts.sglang_rig import agrees, ended, made, path, run, serve

__all__ = ["ended", "path"]

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]
OPTIONS = {"weights": "distributed", "backend": "gloo", "address": "127.0.0.1", "limit_s": 30.0}


def test_every_server_gets_them_in_parts_that_nobody_samples_from(path: Path) -> None:
    """Each load meets anew; until its last part a server's weights have a name of their own."""
    reference = RolloutReference(path)
    servers = [serve(path), serve(path)]
    engine = made(path, *servers, **OPTIONS)
    engine._broadcast._bucket = 20_000
    for version in (1, 2):
        reference.change(seed=version)
        engine.load(version, reference.tensors())
        requests = [Request(PROMPTS[1], SAMPLINGS[0], group_id=10 * version + n) for n in range(4)]
        for request, got in zip(requests, run(engine, *requests), strict=True):
            agrees(reference, request, got)
            assert set(got.versions) == {version}
    for server in servers:
        assert server.scheduler.versions[-1] == server.scheduler.weight_version == "2"
        assert server.scheduler.versions.count("1") == server.scheduler.versions.count("2") == 1
        assert server.scheduler.versions.count("2-in-part") >= 1
        assert sum(p == "/generate" for _, p, _ in server.asked) == 4
        assert not any(p == "/update_weights_from_disk" for _, p, _ in server.asked)
    engine.close()


def test_a_server_that_refuses_says_why(path: Path) -> None:
    """At once, in its own words, and the version is the old one."""
    server = serve(path)
    engine = made(path, server, **{**OPTIONS, "limit_s": 5.0})
    engine.load(1, RolloutReference(path).tensors())
    server.scheduler.refuses = "out of memory"
    with pytest.raises(RolloutError, match="out of memory"):
        engine.load(2, RolloutReference(path).tensors())
    assert engine.version == 1
    engine.close()


def test_parts_are_as_large_as_allowed(path: Path) -> None:
    tensors = RolloutReference(path).tensors()
    parts = list(buckets(tensors.items(), 20_000))
    assert [name for part in parts for name, _ in part] == list(tensors)
    sizes = [sum(t.numel() * t.element_size() for _, t in part) for part in parts]
    assert all(size <= 20_000 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert len(parts) > 1


@pytest.mark.parametrize("given", [{"weights": "pigeon"}, {"backend": "mpi"}, {"bucket_mib": 0}])
def test_options_are_checked(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        SGLangRollout.Config(url=("http://x:1",), **given)  # type: ignore[arg-type]

"""Protocols over every small mesh."""

from __future__ import annotations

import itertools

import pytest

from rlframe.protocol import (
    DP_METRIC,
    DP_PROTO,
    ONE_TO_ALL,
    ONE_TO_ONE,
    THREE_D_PROTO,
    Mesh,
    protocol,
    protocol_of,
)

MESHES = [Mesh(*sizes) for sizes in itertools.product((1, 2, 3), repeat=3)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_ranks_and_coordinates_are_one_to_one(mesh):
    places = {(mesh.dp_rank(r), mesh.pp_rank(r), mesh.tp_rank(r)) for r in range(mesh.size)}
    assert places == set(itertools.product(range(mesh.dp), range(mesh.pp), range(mesh.tp)))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_each_chunk_reaches_its_replica_and_comes_back_once_in_order(mesh):
    for rule in (THREE_D_PROTO, DP_METRIC):
        assert rule.chunks(mesh) == mesh.dp
        assert [rule.chunk_of(mesh, r) for r in range(mesh.size)] == [
            mesh.dp_rank(r) for r in range(mesh.size)
        ]
        collected = rule.collected(mesh)
        assert [rule.chunk_of(mesh, r) for r in collected] == list(range(mesh.dp))
        assert all(mesh.pp_rank(r) == mesh.pp - 1 and mesh.tp_rank(r) == 0 for r in collected)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_whole_arguments(mesh):
    assert ONE_TO_ALL.chunks(mesh) == ONE_TO_ONE.chunks(mesh) == 0
    assert ONE_TO_ALL.collected(mesh) == tuple(range(mesh.size))
    called = [r for r in range(mesh.size) if ONE_TO_ONE.chunk_of(mesh, r) is not None]
    assert tuple(called) == ONE_TO_ONE.collected(mesh) == (0,)


def test_the_protocol_is_declared_on_the_method():
    @protocol(DP_PROTO)
    def infer() -> None: ...

    assert protocol_of(infer) is DP_PROTO
    assert protocol_of(lambda: None) is ONE_TO_ALL

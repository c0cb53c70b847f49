"""Protocols over every small mesh."""

from __future__ import annotations

import itertools

import pytest

from rlframe.calling.protocol import (
    ALL_TO_ALL,
    DP_METRIC,
    DP_PROTO,
    ONE_TO_ALL,
    ONE_TO_ONE,
    THREE_D_ALL_MICRO_DP,
    THREE_D_PP_ONLY,
    THREE_D_PROTO,
    Mesh,
    protocol,
    protocol_of,
)
from rlframe.errors import ConfigError

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


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_pure_data_parallelism_and_values_take_every_rank(mesh):
    for rule in (DP_PROTO, ALL_TO_ALL):
        assert rule.chunks(mesh) == mesh.size
        assert [rule.chunk_of(mesh, r) for r in range(mesh.size)] == list(range(mesh.size))
        assert rule.collected(mesh) == tuple(range(mesh.size))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_rank_of_every_stage_names_its_parameters(mesh):
    assert THREE_D_PP_ONLY.chunks(mesh) == 0
    places = [
        (mesh.dp_rank(r), mesh.pp_rank(r), mesh.tp_rank(r)) for r in THREE_D_PP_ONLY.collected(mesh)
    ]
    assert places == [(0, stage, 0) for stage in range(mesh.pp)]


GENERATION = [
    Mesh(dp, pg * kp, tg * kt, pg, tg)
    for dp, pg, kp, tg, kt in itertools.product((1, 2), (1, 2), (1, 2, 3), (1, 2), (1, 2, 3))
]


@pytest.mark.parametrize("mesh", GENERATION, ids=str)
def test_generation_ranks_are_one_to_one_and_hold_their_training_shard(mesh):
    ranks = range(mesh.size)
    places = {
        (mesh.dp_rank(r), mesh.mdp_rank(r), mesh.gpp_rank(r), mesh.gtp_rank(r)) for r in ranks
    }
    wanted = itertools.product(*map(range, (mesh.dp, mesh.dg, mesh.pg, mesh.tg)))
    assert places == set(wanted)
    for r in ranks:
        assert mesh.gpp_rank(r) == mesh.pp_rank(r) // (mesh.pp // mesh.pg)
        assert mesh.gtp_rank(r) == mesh.tp_rank(r) // (mesh.tp // mesh.tg)


@pytest.mark.parametrize("mesh", GENERATION, ids=str)
def test_a_chunk_for_every_generation_replica(mesh):
    rule = THREE_D_ALL_MICRO_DP
    assert rule.chunks(mesh) == mesh.dp * mesh.dg
    members = [
        [r for r in range(mesh.size) if rule.chunk_of(mesh, r) == c]
        for c in range(rule.chunks(mesh))
    ]
    assert {len(ranks) for ranks in members} == {mesh.pg * mesh.tg}
    for chunk, rank in enumerate(rule.collected(mesh)):
        assert rank in members[chunk]
        assert (mesh.gpp_rank(rank), mesh.gtp_rank(rank)) == (mesh.pg - 1, 0)


def test_the_papers_example():
    """1-4-2 to 1-2-2-2: generation groups [1,3][2,4][5,7][6,8], counted from one."""
    mesh = Mesh(dp=2, pp=1, tp=4, pg=1, tg=2)
    chunks = [THREE_D_ALL_MICRO_DP.chunk_of(mesh, r) for r in range(8)]
    groups = [[r + 1 for r in range(8) if chunks[r] == c] for c in range(4)]
    assert groups == [[1, 3], [2, 4], [5, 7], [6, 8]]


def test_generation_is_as_training_unless_said():
    assert Mesh(2, 2, 4) == Mesh(2, 2, 4, pg=2, tg=4)
    assert Mesh(2, 2, 4).dg == 1
    for wrong in ({"pg": 3}, {"tg": 3}, {"tg": -1}, {"tg": 8}):
        with pytest.raises(ConfigError, match="does not divide"):
            Mesh(2, 2, 4, **wrong)


def test_the_protocol_is_declared_on_the_method():
    @protocol(DP_PROTO)
    def infer() -> None: ...

    assert protocol_of(infer) is DP_PROTO
    assert protocol_of(lambda: None) is ONE_TO_ALL
    assert DP_PROTO.keeping("group_ids").together == "group_ids"
    assert DP_PROTO.together is None

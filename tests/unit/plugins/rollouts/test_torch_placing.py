"""Which ranks generate together, and that resharder, layout and client agree on it."""

from __future__ import annotations

import pytest

from rlframe.calling.protocol import THREE_D_ALL_MICRO_DP, Mesh
from rlframe.config import ModelConfig
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.models import tiny_model
from rlframe.weights.layout import Layout, ParamInfo
from rlframe.weights.model_cuts import cuts_of_model, meta_model
from rlframe.weights.sharding import grid_layout
from rlframe_plugins.resharders.gather_all import GatherAll
from rlframe_plugins.resharders.measure import outside_bytes
from rlframe_plugins.resharders.vanilla import Vanilla
from rlframe_plugins.resharders.zero_redundancy import ZeroRedundancy
from rlframe_plugins.rollouts.torch.engine import TorchRollout


def mesh_of(tensor, world, trained=None):
    return TorchRollout.mesh_of(TorchRollout.Config(tensor_parallel=tensor), world, trained)


def test_in_the_policys_pool_training_replicas_hold_generation_replicas():
    assert mesh_of(2, 8, Mesh(dp=2, tp=4)) == Mesh(dp=2, tp=4, pg=1, tg=2)
    assert mesh_of(2, 4, Mesh(pp=2, tp=2)) == Mesh(pp=2, tp=2, pg=1, tg=2)
    assert mesh_of(1, 4, Mesh(pp=2, tp=2)).dg == 4
    assert mesh_of(2, 4, Mesh(dp=4)) == Mesh(tp=4, tg=2)


def test_in_a_pool_of_its_own_neighbours_form_a_replica():
    assert mesh_of(2, 6) == Mesh(dp=3, tp=2)
    assert mesh_of(1, 3) == Mesh(dp=3)


@pytest.mark.parametrize(("tensor", "world", "trained"), [(2, 3, None), (4, 8, Mesh(4, 1, 2))])
def test_sizes_that_do_not_divide_are_refused(tensor, world, trained):
    with pytest.raises(ConfigError, match=f"tensor_parallel={tensor} does not divide"):
        mesh_of(tensor, world, trained)


def spec(mesh, grouping="strided", path="x"):
    return RolloutSpec(path, ModelConfig(path=path), mesh=mesh, grouping=grouping)


def test_groups_of_the_paper():
    """Figure 8: ranks 1 to 8 there, 0 to 7 here."""
    mesh = Mesh(dp=2, tp=4, tg=2)
    assert spec(mesh).replicas(8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert spec(mesh, "adjacent").replicas(8) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert spec(None).replicas(3) == ((0,), (1,), (2,))


@pytest.mark.parametrize(
    "mesh", [Mesh(2, 2, 4, 1, 2), Mesh(1, 4, 2, 2, 1), Mesh(3, 1, 4, 1, 1), Mesh(2, 2, 2, 1, 2)]
)
def test_requests_go_where_the_protocol_collects(mesh):
    leaders = tuple(members[0] for members in spec(mesh).replicas(mesh.size))
    assert leaders == THREE_D_ALL_MICRO_DP.collected(mesh)
    assert sorted(r for m in spec(mesh).replicas(mesh.size) for r in m) == list(range(mesh.size))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    path = tiny_model(tmp_path_factory.mktemp("m"), **sizes, num_key_value_heads=4, vocab_size=40)
    return str(path)


def layouts(model, mesh, resharder):
    """What the trainer has, and what the rollout asks for under a resharder's grouping."""
    params, cuts = cuts_of_model(meta_model(model))
    trained = grid_layout(params, cuts, mesh)
    engine = TorchRollout(
        TorchRollout.Config(tensor_parallel=mesh.tg), spec(mesh, resharder.grouping, model)
    )
    engine.rank = RankInfo(world=mesh.size)
    return trained, engine.layout(trained)


@pytest.mark.parametrize("mesh", [Mesh(2, 1, 4, 1, 2), Mesh(1, 2, 4, 1, 2)])
def test_only_the_strided_grouping_has_no_redundancy(model, mesh):
    zero = layouts(model, mesh, ZeroRedundancy)
    assert [outside_bytes(*zero, rank) for rank in range(mesh.size)] == [0] * mesh.size
    for other in (Vanilla, GatherAll):
        plain = layouts(model, mesh, other)
        assert max(outside_bytes(*plain, rank) for rank in range(mesh.size)) > 0


def test_a_plan_under_each_resharder_fills_the_layout(model):
    mesh = Mesh(2, 1, 4, 1, 2)
    for kind, config in ((ZeroRedundancy, ZeroRedundancy.Config()), (Vanilla, None)):
        trained, wanted = layouts(model, mesh, kind)
        plan = kind(config).plan(trained, wanted)
        assert plan.target == wanted
        assert {m.target for m in plan.moves} == set(range(8))


def test_pipeline_stages_are_refused(model):
    mesh = Mesh(1, 2, 2, 2, 2)
    with pytest.raises(ConfigError, match="no pipeline stages"):
        layouts(model, mesh, ZeroRedundancy)


def test_a_parameter_that_the_model_lacks_is_named(model):
    engine = TorchRollout(TorchRollout.Config(tensor_parallel=2), spec(Mesh(tp=2), path=model))
    with pytest.raises(ModelError, match="no parameter 'strange'"):
        engine.layout(Layout.full({"strange": ParamInfo((2,), "float32")}, 2))


def test_heads_that_do_not_divide_are_refused(tmp_path):
    path = str(tiny_model(tmp_path / "m", num_attention_heads=2, num_key_value_heads=1))
    engine = TorchRollout(TorchRollout.Config(tensor_parallel=4), spec(Mesh(tp=4), path=path))
    with pytest.raises(ModelError, match="tensor_parallel=4 does not divide 2 heads"):
        engine._arch.shard(4)

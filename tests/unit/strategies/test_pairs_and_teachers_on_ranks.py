"""Pairs and divergences over several ranks, some of them without rows: those of one rank."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.calling.fan_out import distribute
from rlframe.calling.protocol import DP_METRIC
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import tiny_model
from rlframe_algorithms.distill import Distill
from rlframe_algorithms.rm import RewardModel
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.fsdp import FSDPStrategy

pytestmark = pytest.mark.dist


def engine_for(rank, path, algorithm, role, options):
    optim = OptimConfig(name="sgd", lr=0.1) if role.trained else None
    engine = CausalLMEngine(rank)
    engine.setup(
        EngineSpec(
            role=role,
            model=ModelSpec(path, ModelConfig(path=path), role.model, optim, 10),
            strategy=Selected("fsdp", "", FSDPStrategy.Config(**options), value=FSDPStrategy),
            algorithm=Selected("a", "", algorithm.config, value=type(algorithm)),
            tokens_per_microbatch=8,
        )
    )
    return engine


def batch_for(algorithm, rows):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, rows)
    columns = {
        "prompt_ids": [[1, 2, 3]] * rows,
        "response_ids": [rng.integers(3, 30, n) for n in lengths],
        "response_mask": [[True] * n for n in lengths],
        "group_ids": np.arange(rows) // 2,
        "train": np.ones(rows, bool),
    }
    if algorithm.offline:
        columns["chosen"] = np.arange(rows) % 2 == 0
    return Batch.from_columns(columns, schema=algorithm.schema())


def update(rank, paths, algorithm, rows, options):
    roles = algorithm.roles()
    engines = {
        role.name: engine_for(rank, path, algorithm, role, options)
        for role, path in zip(roles, paths, strict=False)
    }
    policy = engines["policy"]
    policy.peers = engines
    batch = batch_for(algorithm, rows)
    mesh = FSDPStrategy.mesh_of(FSDPStrategy.Config(**options), rank.world)
    plan = plan_batch(
        batch,
        epochs=2,
        minibatch_prompts=0,
        budget=8,
        ranks=mesh.dp,
        atom_ids=algorithm.atoms(batch),
    )
    share = distribute(DP_METRIC, mesh, (batch, plan))[rank.rank]
    figures = policy.evaluate(*share.args) | policy.update(*share.args).metrics
    for engine in reversed(engines.values()):
        engine.close()
    return figures


@pytest.mark.parametrize(
    "algorithm",
    [RewardModel(), Distill(), Distill(divergence="jsd", top_k=3)],
    ids=["rm", "whole", "top-k"],
)
@pytest.mark.parametrize(
    ("world", "rows", "options"), [(2, 6, {}), (3, 2, {}), (2, 6, {"cp": 2}), (4, 6, {"tp": 2})]
)
def test_figures_are_those_of_one_rank(tmp_path, algorithm, world, rows, options):
    student = str(tiny_model(tmp_path / "student"))
    teacher = str(tiny_model(tmp_path / "teacher", "llama", seed=4))
    paths = [student, teacher]
    (alone,) = run_ranks(update, 1, paths, algorithm, rows, {})
    assert alone["grad_norm"] > 0
    for seen in run_ranks(update, world, paths, algorithm, rows, options):
        assert seen == pytest.approx(alone, rel=1e-4, abs=1e-6)

"""The model engine over strategy deepspeed: figures and weights of one update, as from single."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("deepspeed", reason="strategy 'deepspeed' needs deepspeed: make test-deepspeed")

from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.calling.fan_out import distribute
from rlframe.calling.protocol import DP_METRIC, Mesh
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec
from rlframe.testing.models import VOCABULARY, tiny_model
from rlframe_algorithms.distill import Distill
from rlframe_algorithms.grpo import GRPO
from rlframe_strategies.deepspeed import DeepSpeedStrategy
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.single import SingleStrategy
from tests.unit.strategies.deepspeed_runs import SHARDED, STAGES, ranks

pytestmark = [pytest.mark.dist, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    student = tiny_model(tmp_path_factory.mktemp("student"), seed=1)
    teacher = tiny_model(tmp_path_factory.mktemp("teacher"), "llama", seed=2, hidden_size=24)
    return str(student), str(teacher)


def batch_of(rows):
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(1, 8, rows)]
    return Batch.from_columns(
        {
            "prompt_ids": [rng.integers(1, VOCABULARY, 3) for _ in range(rows)],
            "response_ids": [rng.integers(1, VOCABULARY, n) for n in lengths],
            "response_mask": [np.ones(n, bool) for n in lengths],
            "group_ids": np.arange(rows),
            "episode_ids": np.arange(rows),
            "train": np.ones(rows, bool),
            "old_logprobs": [-3.6 + rng.random(n).astype(np.float32) for n in lengths],
            "advantages": [rng.standard_normal(n).astype(np.float32) for n in lengths],
        }
    )


def engine_for(rank, path, algorithm, role, strategy, options):
    optim = OptimConfig(name="sgd", lr=0.1)
    engine = CausalLMEngine(rank)
    model = ModelSpec(path, ModelConfig(path=path), role.model, optim if role.trained else None, 9)
    engine.setup(
        EngineSpec(
            role=role,
            model=dataclasses.replace(model, temperature=0.8),
            strategy=Selected("s", "", strategy.Config(**options), value=strategy),
            algorithm=Selected("a", "", algorithm.config, value=type(algorithm)),
            tokens_per_microbatch=16,
            max_response_tokens=8,
        )
    )
    return engine


def update(rank, folders, made, rows, strategy, options):
    """Figures of one update, and every weight whole; the other roles are beside."""
    algorithm = made()
    engines = {
        role.name: engine_for(rank, path, algorithm, role, strategy, options)
        for role, path in zip(algorithm.roles(), folders, strict=False)
    }
    policy = engines["policy"]
    policy.peers = engines
    batch = batch_of(rows)
    plan = plan_batch(batch, budget=16, ranks=rank.world)
    share = distribute(DP_METRIC, Mesh(rank.world), (batch, plan))[rank.rank]
    figures = policy.evaluate(*share.args) | policy.update(*share.args).metrics
    inside = policy._strategy
    weights = {name: inside.full(p).clone() for name, p in inside.parameters().items()}
    for engine in engines.values():
        engine.close()
    return figures, weights


def grpo():
    return GRPO(GRPO.Config(kl_coef=0.0))


@pytest.mark.parametrize("options", STAGES[1:], ids=["zero1", "zero2", "zero3"])
@pytest.mark.parametrize(("world", "rows"), [(2, 5), (4, 2)])
def test_an_update_equals_single(folders, options, world, rows):
    """Entropy is a figure that no loss uses; with two rows on four ranks two have none."""
    ((wanted, weights),) = ranks(update, 1, folders, grpo, rows, SingleStrategy, {})
    for figures, moved in ranks(update, world, folders, grpo, rows, DeepSpeedStrategy, options):
        assert figures == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        for name, tensor in weights.items():
            torch.testing.assert_close(moved[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("options", [{"zero": 1}, SHARDED], ids=["zero1", "zero3"])
def test_a_divergence_from_a_frozen_teacher_beside(folders, options):
    """Whole distributions of two models, each cut over the ranks."""
    ((wanted, weights),) = ranks(update, 1, folders, Distill, 5, SingleStrategy, {})
    for figures, moved in ranks(update, 2, folders, Distill, 5, DeepSpeedStrategy, options):
        assert figures == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        for name, tensor in weights.items():
            torch.testing.assert_close(moved[name], tensor, rtol=1e-5, atol=1e-5, msg=name)

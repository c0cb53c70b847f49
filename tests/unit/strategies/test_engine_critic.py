"""A critic's engine, and methods that look at the whole mini-batch, on any split and ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.learning.advantages import checked_columns
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import tiny_model
from rlframe_algorithms.clip_cov import ClipCov
from rlframe_algorithms.kl_cov import KLCov
from rlframe_algorithms.ppo import PPO
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy

ROWS = 8
METHODS = {
    "ppo": PPO(epochs=2, minibatch_prompts=2, clip_ratio=0.02),
    "clip-cov": ClipCov(cov_share=0.2, cov_low=-9.0, cov_high=9.0),
    "kl-cov": KLCov(cov_share=0.2, epochs=2, minibatch_prompts=3),
    "mask": PPO(rollout_correction="mask", rollout_low=0.9, rollout_high=1.1),
}


def engine_of(rank, path, algorithm, role, strategy, budget):
    optim = OptimConfig(name="sgd", lr=0.05, max_grad_norm=0.5, tokens_per_microbatch=budget)
    engine = CausalLMEngine(rank)
    engine.setup(
        EngineSpec(
            role=role,
            model=ModelSpec(path, ModelConfig(path=path), role.model, optim, 10),
            strategy=Selected(strategy.__name__, "", strategy.Config(), value=strategy),
            algorithm=Selected("a", "", algorithm.config, value=type(algorithm)),
            tokens_per_microbatch=budget,
            max_response_tokens=8,
        )
    )
    return engine


def collected(algorithm):
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 8, ROWS)
    masks = [rng.random(n) < 0.8 for n in lengths]
    columns = {
        "prompt_ids": [rng.integers(1, 30, 1 + n % 3) for n in range(ROWS)],
        "response_ids": [rng.integers(1, 30, n) for n in lengths],
        "response_mask": masks,
        "rollout_logprobs": [rng.normal(-3.5, 0.1, n).astype(np.float32) for n in lengths],
        "response_tokens": np.array([mask.sum() for mask in masks], np.int64),
        "group_ids": np.arange(ROWS, dtype=np.int64) // 2,
        "episode_ids": np.arange(ROWS, dtype=np.int64) + 2**24,
        "train": np.arange(ROWS) != 3,
        "rewards": rng.normal(size=ROWS).astype(np.float32),
    }
    return Batch.from_columns(columns, schema=algorithm.schema())


def learned(rank, path, name, strategy, budget):
    """Score, derive advantages and update every role, as the Orchestrator has the ranks do it."""
    algorithm = METHODS[name]
    batch, figures, weights = collected(algorithm), {}, {}
    roles = [role for role in algorithm.roles() if role.trained]
    engines = {r.name: engine_of(rank, path, algorithm, r, strategy, budget) for r in roles}
    batch.scalars = dict(algorithm.scalars())
    for role in algorithm.scorers():
        batch = batch.add(engines[role.name].infer(batch))
    batch = batch.add(checked_columns(algorithm, batch))
    for role in roles:
        engine = engines[role.name]
        mesh = engine._strategy.mesh
        epochs, prompts = role.schedule(algorithm.config)
        sizes = {"budget": budget, "ranks": mesh.dp}
        plan = plan_batch(batch, epochs=epochs, minibatch_prompts=prompts, **sizes)
        rows, mine = plan.parts(mesh.dp)[rank.rank]
        metrics = engine.update(batch.take(rows), mine).metrics
        figures |= {f"{role.name}/{n}": value for n, value in metrics.items()}
        strategy_ = engine._strategy
        whole = {n: strategy_.full(p).clone() for n, p in strategy_.module.named_weights()}
        weights |= {f"{role.name}/{n}": tensor for n, tensor in whole.items()}
    for engine in engines.values():
        engine.close()
    return figures, weights


def same(found, wanted):
    (figures, weights), (others, tensors) = found, wanted
    assert figures == pytest.approx(others, rel=1e-4, abs=1e-6)
    for name, tensor in tensors.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.mark.parametrize("name", METHODS)
def test_every_split_learns_the_same(path, name):
    whole = learned(RankInfo(), path, name, SingleStrategy, 10_000)
    assert whole[0]["policy/grad_norm"] > 0
    if name == "ppo":
        assert whole[0]["critic/grad_norm"] > 0
        assert 0 < whole[0]["critic/vf_clipfrac"] + whole[0]["policy/pg_clipfrac"] < 2
    if name == "clip-cov":
        assert 0 < whole[0]["policy/cov_drawn"] <= 0.2
    if name == "kl-cov":
        assert 0 < whole[0]["policy/cov_top"] <= 0.2
    for budget in (1, 25):
        same(learned(RankInfo(), path, name, SingleStrategy, budget), whole)


@pytest.mark.dist
@pytest.mark.parametrize("name", ["ppo", "clip-cov", "kl-cov"])
def test_every_number_of_ranks_learns_the_same(path, name):
    (alone,) = run_ranks(learned, 1, path, name, FSDPStrategy, 25)
    for seen in run_ranks(learned, 3, path, name, FSDPStrategy, 25):
        same(seen, alone)


def test_the_gap_between_trainer_and_sampler(path):
    figures, _ = learned(RankInfo(), path, "clip-cov", SingleStrategy, 25)
    algorithm = METHODS["clip-cov"]
    batch = collected(algorithm)
    engine = engine_of(RankInfo(), path, algorithm, algorithm.roles()[0], SingleStrategy, 25)
    old = torch.from_numpy(engine.infer(batch)["old_logprobs"].padded()).double()
    mask = batch["response_mask"] & batch["train"][:, None]
    log_w = (old - batch["rollout_logprobs"].double())[mask]
    w = log_w.exp()
    wanted = {
        "rollout_logprob_gap": log_w.abs().mean(),
        "rollout_logprob_gap_max": log_w.abs().max(),
        "rollout_kl": (w - 1 - log_w).mean(),
        "rollout_ess": w.sum() ** 2 / (len(w) * w.square().sum()),
    }
    for name, value in wanted.items():
        assert figures[f"policy/{name}"] == pytest.approx(float(value), rel=1e-5), name
    assert 0 < figures["policy/rollout_ess"] <= 1

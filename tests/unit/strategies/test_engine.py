"""Loss, gradient and metrics are those of the whole mini-batch, however it is split."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec, RankInfo
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.learning.advantages import add_advantages
from rlframe_algorithms.grpo import GRPO
from rlframe_algorithms.sft import SFT
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.single import SingleStrategy

VOCAB, GROUPS, SAMPLES = 32, 4, 3
REDUCTIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def engine_for(model_dir, algorithm, packing="auto", **optim):
    optimiser = OptimConfig(name="sgd", lr=0.5, **optim)
    role = algorithm.roles()[0]
    made = CausalLMEngine(RankInfo())
    made.setup(
        EngineSpec(
            role=role,
            model=ModelSpec(model_dir, ModelConfig(path=model_dir), "policy", optimiser, 10),
            strategy=Selected(
                "single",
                "rlframe_strategies.single:SingleStrategy",
                SingleStrategy.Config(packing=packing),
            ),
            algorithm=Selected("a", "", algorithm.config, value=type(algorithm)),
            tokens_per_microbatch=optimiser.tokens_per_microbatch,
            max_response_tokens=8,
        )
    )
    return made


def rollouts(algorithm, seed=0, poison=True):
    """A ragged batch with tool tokens, an untrained row and an empty response."""
    rng = np.random.default_rng(seed)
    rows = GROUPS * SAMPLES
    prompts = [rng.integers(1, VOCAB, rng.integers(1, 6)) for _ in range(GROUPS)]
    lengths = rng.integers(1, 9, rows)
    lengths[4] = 0
    masks = [rng.random(n) < 0.8 for n in lengths]
    logprobs = [rng.normal(-3, 0.5, n).astype(np.float32) for n in lengths]
    if poison:
        for mask, values in zip(masks, logprobs, strict=True):
            values[~mask] = np.nan
    train = np.ones(rows, bool)
    train[7] = False
    columns = {
        "prompt_ids": [prompts[i // SAMPLES] for i in range(rows)],
        "response_ids": [rng.integers(1, VOCAB, n) for n in lengths],
        "response_mask": masks,
        "rollout_logprobs": logprobs,
        "response_tokens": np.array([m.sum() for m in masks], np.int64),
        "group_ids": np.arange(rows, dtype=np.int64) // SAMPLES,
        "episode_ids": np.arange(rows, dtype=np.int64),
        "train": train,
        "rewards": rng.normal(size=rows).astype(np.float32),
    }
    if algorithm.roles()[0].outputs:
        columns["old_logprobs"] = logprobs
    if algorithm.config.kl_coef:
        columns["ref_logprobs"] = [v + np.float32(0.3) for v in logprobs]
    batch = Batch.from_columns(columns, schema=algorithm.schema(), transfer=LocalTransfer())
    return add_advantages(algorithm, batch, None)


def outcome(model_dir, algorithm, budget, *, packing="auto", order=None, poison=True):
    batch = rollouts(algorithm, poison=poison)
    if order is not None:
        batch = batch.take(order)
    engine = engine_for(model_dir, algorithm, packing, tokens_per_microbatch=budget)
    plan = plan_batch(
        batch,
        epochs=algorithm.config.epochs,
        minibatch_prompts=algorithm.config.minibatch_prompts,
        budget=budget,
    )
    result = engine.update(batch, plan)
    weights = {name: value.detach().clone() for name, value in engine._strategy.views().items()}
    return result, weights


def same(first, second, tolerance=2e-5):
    (one, weights), (other, others) = first, second
    assert one.metrics.keys() == other.metrics.keys()
    for name, value in one.metrics.items():
        assert value == pytest.approx(other.metrics[name], rel=1e-4, abs=tolerance), name
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-4, atol=tolerance)


def grpo(reduction, **options):
    return GRPO(GRPO.Config(reduction=reduction, entropy_coef=0.01, **options))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("method", ["grpo", "sft"])
@pytest.mark.parametrize(("epochs", "minibatch"), [(1, 0), (2, 2)])
def test_every_split_gives_the_same_update(model_dir, method, reduction, epochs, minibatch):
    options = {"reduction": reduction, "epochs": epochs, "minibatch_prompts": minibatch}
    algorithm = grpo(**options) if method == "grpo" else SFT(SFT.Config(**options, kl_coef=0.0))
    whole = outcome(model_dir, algorithm, 10_000, packing="off")
    assert all(np.isfinite(v) for v in whole[0].metrics.values())
    assert whole[0].metrics["grad_norm"] > 0
    same(whole, outcome(model_dir, algorithm, 10_000, packing="on"))
    for budget in (1, 12, 30):
        same(whole, outcome(model_dir, algorithm, budget))


def test_the_order_of_rows_changes_nothing(model_dir):
    algorithm = grpo("seq-mean-token-mean")
    order = np.random.default_rng(3).permutation(GROUPS * SAMPLES)
    same(outcome(model_dir, algorithm, 20), outcome(model_dir, algorithm, 20, order=order))


def test_nan_in_masked_slots_changes_nothing(model_dir):
    algorithm = grpo("token-mean")
    clean = outcome(model_dir, algorithm, 20, poison=False)
    same(clean, outcome(model_dir, algorithm, 20, poison=True))


def test_nonfinite_step_is_skipped_and_named(model_dir):
    algorithm = grpo("token-mean", kl_coef=0.0)
    batch = rollouts(algorithm)
    bad = batch["advantages"].clone()
    bad[0, 0] = float("inf")
    columns = {n: batch.packed(n) for n in batch.columns if n != "advantages"}
    batch = Batch.from_columns({**columns, "advantages": bad}, schema=batch.schema)
    engine = engine_for(model_dir, algorithm)
    before = {n: v.detach().clone() for n, v in engine._strategy.views().items()}
    result = engine.update(batch, plan_batch(batch, budget=100))
    assert result.optim_steps == 0
    assert "pg_loss" in result.skipped[0]
    for name, value in engine._strategy.views().items():
        assert torch.equal(value, before[name])


def test_minibatch_columns_see_the_whole_minibatch(model_dir):
    class Whole(GRPO):
        """Adds a column that needs every row's output."""

        seen: list[tuple[int, ...]] = []

        def minibatch(self, out, batch):
            self.seen.append(tuple(out.logprobs.shape))
            mean = out.logprobs.sum() / batch["response_mask"].sum()
            return {"centre": torch.full_like(out.logprobs, float(mean))}

        def policy_loss(self, out, batch):
            return super().policy_loss(out, batch) - batch["centre"] * out.logprobs

    algorithm = Whole(GRPO.Config())
    whole = outcome(model_dir, algorithm, 10_000)
    split = outcome(model_dir, algorithm, 12)
    same(whole, split)
    assert {shape[0] for shape in Whole.seen} == {GROUPS * SAMPLES}


def test_old_logprobs_of_the_same_pass_are_those_of_a_pass_before(model_dir):
    algorithm = grpo("token-mean", kl_coef=0.0)
    batch = rollouts(algorithm)
    bare = batch.select([name for name in batch.columns if name != "old_logprobs"])
    plan = plan_batch(bare, budget=30)
    found = []
    for before in (False, True):
        engine = engine_for(model_dir, algorithm, tokens_per_microbatch=30)
        scored = bare.add(engine.infer(bare)) if before else bare
        result = engine.update(scored, plan)
        found.append((result, dict(engine._strategy.views())))
    same(*found)

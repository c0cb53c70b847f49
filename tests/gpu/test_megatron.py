"""Strategy megatron on a GPU: Transformer Engine's layers where the package is, plain ones else."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")


def on_gpu(rank, folder, saved, seed=1):
    """One step in bfloat16, its norm and the log-probabilities after it."""
    import dataclasses

    from rlframe.config import ModelConfig, OptimConfig
    from rlframe.interfaces.strategy import ModelSpec
    from rlframe.testing.models import random_micro
    from rlframe.testing.strategy_runs import TEMPERATURE, summed_loss
    from rlframe_strategies.megatron.strategy import MegatronStrategy

    rank = dataclasses.replace(rank, device="cuda:0")
    strategy = MegatronStrategy(MegatronStrategy.Config(), rank)
    spec = ModelSpec(str(folder), ModelConfig(path=str(folder)), optim=OptimConfig(lr=0.01))
    strategy.build(dataclasses.replace(spec, optim_steps=2, temperature=TEMPERATURE))
    micro = random_micro(seed=seed)
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    norm = strategy.step(1.0)
    before = strategy.forward(micro, ("logprobs",)).logprobs
    strategy.offload()
    strategy.onload()
    after = strategy.forward(micro, ("logprobs",)).logprobs
    assert bool((before == after).all())
    strategy.save(saved)
    fused = strategy.model.fused_attention
    strategy.close()
    return norm, before, fused


def test_a_step_on_a_gpu_is_close_to_one_on_the_cpu(tmp_path):
    from importlib.util import find_spec

    from rlframe.interfaces.strategy import RankInfo
    from rlframe.testing.dist import run_ranks
    from rlframe.testing.strategy_runs import Job, run_job
    from rlframe_strategies.single import SingleStrategy
    from tests.unit.strategies.megatron.models import write_model

    folder = write_model(tmp_path / "m", "qwen2", hidden_size=64, num_attention_heads=4)
    job = Job(SingleStrategy, folder, {}, seeds=(1,), clip=0.0)
    (exact,) = run_ranks(run_job, 1, job)
    norm, _, fused = on_gpu(RankInfo(), folder, tmp_path / "saved")
    assert fused == (find_spec("transformer_engine") is not None)
    assert norm == pytest.approx(exact.norms[0], rel=0.05)

"""Strategy megatron on a GPU: Transformer Engine's layers where the package is, plain ones else."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")


def on_gpu(rank, folder, saved, seed=1):
    """One step in bfloat16: log-probabilities before it, and its norm."""
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
    first = strategy.forward(micro, ("logprobs",)).logprobs
    strategy.forward_backward([micro], ("logprobs", "entropy"), summed_loss)
    norm = strategy.step(1.0)
    before = strategy.forward(micro, ("logprobs",)).logprobs
    strategy.offload()
    strategy.onload()
    after = strategy.forward(micro, ("logprobs",)).logprobs
    assert bool((before == after).all())
    strategy.save(saved)
    strategy.close()
    return first, norm


def test_a_step_on_a_gpu_is_close_to_one_on_the_cpu(tmp_path):
    import torch

    from rlframe.interfaces.strategy import RankInfo
    from rlframe.testing.dist import run_ranks
    from rlframe.testing.strategy_runs import Job, run_job
    from rlframe_strategies.single import SingleStrategy
    from tests.unit.strategies.megatron.models import write_model

    folder = write_model(tmp_path / "m", "qwen2", hidden_size=64, num_attention_heads=4)
    job = Job(SingleStrategy, folder, {}, seeds=(1,), clip=0.0)
    (exact,) = run_ranks(run_job, 1, job)
    first, norm = on_gpu(RankInfo(), folder, tmp_path / "saved")
    torch.testing.assert_close(first, exact.before["logprobs"], rtol=0.05, atol=0.05)
    assert norm == pytest.approx(exact.norms[0], rel=0.05)

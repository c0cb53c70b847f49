"""Activations on the host: the same gradients, and less of the GPU's memory at the peak."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


def peak(path, kept):
    """Peak bytes of a forward and backward pass beyond what was there, and the gradient norm."""
    import torch

    from rlframe.config import ModelConfig, OptimConfig
    from rlframe.interfaces.strategy import ModelSpec, RankInfo
    from rlframe.testing.models import random_micro
    from rlframe_strategies.fsdp import FSDPStrategy

    strategy = FSDPStrategy(FSDPStrategy.Config(activation_offload=kept), RankInfo(device="cuda:0"))
    model = ModelConfig(path=str(path), dtype="float32")
    optim = OptimConfig(name="sgd", lr=0.1)
    strategy.build(ModelSpec(str(path), model, optim=optim))
    micro = random_micro(rows=64, prompt=30, response=30)
    strategy.forward(micro, ("logprobs",))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    strategy.forward_backward(
        [micro], ("logprobs",), lambda out, rows: (out.logprobs * rows["weights"]).sum()
    )
    used = torch.cuda.max_memory_allocated() - before
    norm = strategy.step(0.0)
    strategy.close()
    return used, norm


def test_less_memory_and_the_same_gradient(tmp_path):
    from rlframe.testing.models import tiny_model

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    path = tiny_model(tmp_path / "model", **sizes)
    (plain, norm), (kept, other) = peak(path, False), peak(path, True)
    assert other == pytest.approx(norm, rel=1e-4)
    assert kept < 0.7 * plain

"""Saved activations go to the host, weights stay where FSDP keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlframe.testing.models import tiny_model
from rlframe.testing.strategy_runs import SEEDS
from rlframe_strategies.offload import HostActivations
from tests.unit.strategies.fsdp_runs import check_steps, run


class Seen(HostActivations):
    """Remembers what was packed, and whether it was left where it was."""

    def __init__(self) -> None:
        self.packed: list[Tensor] = []
        self.left: list[Tensor] = []
        super().__init__()

    def _pack(self, tensor: Tensor) -> Any:
        kept = super()._pack(tensor)
        (self.left if isinstance(kept, Tensor) else self.packed).append(tensor)
        return kept


def test_activations_are_packed_and_weights_and_their_views_are_not() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    seen = Seen()
    with seen:
        out = (layer(x).tanh() @ layer.weight).square().sum()
    out.backward()
    plain = nn.Linear(4, 3)
    plain.load_state_dict(layer.state_dict())
    (plain(x.detach()).tanh() @ plain.weight).square().sum().backward()
    assert layer.weight.grad is not None
    assert plain.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
    assert any(tensor is x for tensor in seen.packed)
    assert seen.left
    weight = layer.weight.untyped_storage().data_ptr()
    assert {t.untyped_storage().data_ptr() for t in seen.left} == {weight}
    assert weight not in {t.untyped_storage().data_ptr() for t in seen.packed}


@pytest.mark.dist
@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_sharded_step_is_the_same(tmp_path: Path, checkpointing: bool) -> None:
    path = tiny_model(tmp_path / "model")
    options = {"activation_offload": True}
    check_steps(run(2, path, options, seeds=SEEDS, checkpointing=checkpointing), path, "policy")

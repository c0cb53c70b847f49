"""What Megatron really allocates beside the auto-mapper's formulas; run by make test-megatron."""

from __future__ import annotations

import gc

import pytest
import torch

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")

from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe.testing.strategy_runs import summed_loss
from rlframe_plugins.mappers.grid import SCHEMES, Grid
from rlframe_plugins.mappers.memory import states
from rlframe_plugins.mappers.models import load_model
from rlframe_strategies.megatron import shim
from rlframe_strategies.megatron.strategy import MegatronStrategy
from tests.unit.plugins.mappers.sizes import SIZES

pytestmark = pytest.mark.dist

shim.install()  # once, before ranks are forked

FORMS = {
    "one rank": (1, {}),
    "replicas": (2, {}),
    "tensor": (2, {"tp": 2, "sequence_parallel": True}),
    "stages": (2, {"pp": 2}),
    "tensor and stages": (4, {"tp": 2, "pp": 2}),
    "tensor and replicas": (4, {"tp": 2}),
}


def storages():
    """Bytes of every distinct tensor storage that Python can reach."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            for one in (thing, thing.grad if thing.is_leaf else None):
                if one is not None and one.device.type == "cpu":
                    storage = one.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return found


def allocations(rank, path, options):
    """Bytes by part on one rank, after a backward pass and a step; ``all`` that is new."""
    before = storages()
    strategy = MegatronStrategy(MegatronStrategy.Config(**options), rank)
    model = ModelConfig(path=str(path))
    strategy.build(ModelSpec(str(path), model, optim=OptimConfig(), optim_steps=4))
    built = storages()
    strategy.forward_backward([random_micro(rows=2)], ("logprobs", "entropy"), summed_loss)
    strategy.step(1.0)
    stepped = storages()
    weights = {w.untyped_storage().data_ptr() for w in strategy.weights().values()}
    gradients = {b.untyped_storage().data_ptr() for b in strategy.shards.buffers()}
    strategy.close()
    return {
        "weights": sum(stepped[pointer] for pointer in weights),
        "gradients": sum(stepped[pointer] for pointer in gradients),
        "optimizer": sum(size for pointer, size in stepped.items() if pointer not in built),
        "all": sum(size for pointer, size in stepped.items() if pointer not in before),
    }


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("form", FORMS)
def test_states_are_what_is_allocated(tmp_path, kind, form):
    """The fullest rank, each part and the sum within 10 %."""
    world, options = FORMS[form]
    path = tiny_model(tmp_path, kind, **SIZES)
    t, p = options.get("tp", 1), options.get("pp", 1)
    way = (1, world, t, p, world // (t * p), SCHEMES.index("megatron"), 2, 0, 1)
    parts = states(load_model(str(path)), Grid.of([way]), 4)
    expected = {part: float(value[0]) for part, value in parts.items()}
    seen = run_ranks(allocations, world, path, options)
    for part, value in expected.items():
        assert max(rank[part] for rank in seen) == pytest.approx(value, rel=0.1), part
    fullest = max(rank["all"] for rank in seen)
    assert fullest == pytest.approx(sum(expected.values()), rel=0.1)

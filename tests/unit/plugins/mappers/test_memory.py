"""Formulas against what is really allocated on a CPU, and against the paper's tables."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from rlframe.config import ModelConfig, OptimConfig
from rlframe.interfaces.strategy import ModelSpec
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import random_micro, tiny_model
from rlframe_plugins.mappers.grid import RECOMPUTE, SCHEMES, Grid
from rlframe_plugins.mappers.memory import activations, kv_bytes, parameters_held, states
from rlframe_plugins.mappers.models import load_model
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_strategies.fsdp import FSDPStrategy
from rlframe_strategies.single import SingleStrategy
from tests.unit.plugins.mappers.sizes import SIZES


def way(scheme, t=1, p=1, d=1, micro=1, recompute="selective", offload=0):
    codes = (SCHEMES.index(scheme), RECOMPUTE.index(recompute), offload, micro)
    return Grid.of([(1, t * p * d, t, p, d, *codes)])


def live_bytes():
    """Bytes of all distinct tensor storages in this process."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor):
            continue
        for one in (thing, thing.grad if thing.is_leaf else None):
            local = getattr(one, "_local_tensor", one)
            if local is not None:
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def allocations(rank, target, path):
    empty = live_bytes()
    strategy = target(target.Config(), rank)
    model = ModelConfig(path=str(path))
    strategy.build(ModelSpec(str(path), model, optim=OptimConfig(), optim_steps=4))
    weights = live_bytes() - empty
    micro = random_micro(rows=2)
    strategy.forward_backward([micro], ("logprobs",), lambda out, micro: out.logprobs.sum())
    gradients = live_bytes() - empty - weights
    strategy.step(1.0)
    optimizer = live_bytes() - empty - weights
    strategy.close()
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize(
    ("target", "world", "scheme"), [(SingleStrategy, 1, "ddp"), (FSDPStrategy, 2, "fsdp")]
)
def test_states_are_what_is_allocated(tmp_path, kind, target, world, scheme):
    path = tiny_model(tmp_path, kind, **SIZES)
    expected = states(load_model(str(path)), way(scheme, d=world), 4)
    for seen in run_ranks(allocations, world, target, path):
        for part, value in expected.items():
            assert seen[part] == pytest.approx(float(value[0]), rel=0.01), part


def test_the_kv_cache_is_what_is_allocated(tmp_path):
    from transformers import AutoModelForCausalLM

    path = tiny_model(tmp_path, "llama", **SIZES)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        cache = model(torch.ones(3, 50, dtype=torch.long), use_cache=True).past_key_values
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    one = kv_bytes(load_model(str(path)), np.ones(1), np.ones(1), 4)
    assert held == 3 * 50 * one[0]


def test_the_cache_in_blocks_is_what_is_allocated(tmp_path):
    """Of the embedded rollout engine, whole blocks at a time."""
    shape = load_model(str(tiny_model(tmp_path, "llama", **SIZES)))
    cache = KVCache(shape.layers, shape.kv_heads, shape.head_dim)
    cache.reserve(20, 20, torch.empty(0))
    layers = range(shape.layers)
    held = sum(t.nbytes for i in layers for t in (cache.keys(i), cache.values(i)))
    assert held == 20 * BLOCK_TOKENS * kv_bytes(shape, np.ones(1), np.ones(1), 4)[0]


@pytest.mark.parametrize(
    ("scheme", "d", "each"),
    [
        ("ddp", 4, 18),
        ("zero1", 4, 2 + 4 + 12 / 4),
        ("zero2", 4, 2 + (4 + 12) / 4),
        ("fsdp", 4, 18 / 4),
        ("megatron", 4, 2 + 4 + 12 / 4),
    ],
)
def test_bytes_a_parameter(scheme, d, each):
    shape = load_model("llama-2-7b")
    total = sum(float(v[0]) for v in states(shape, way(scheme, d=d), 2).values())
    assert total == pytest.approx(each * shape.parameters)


@pytest.mark.parametrize(("t", "p"), [(2, 1), (8, 1), (1, 4), (4, 2)])
def test_a_replica_holds_at_least_the_model(t, p):
    shape = load_model("llama-3-8b")
    held = float(parameters_held(shape, np.array([t]), np.array([p]))[0])
    even = shape.parameters / (t * p)
    assert even <= held < 1.35 * even
    body = shape.layer_parameters / (t * p)
    edge = (shape.embedding_parameters + shape.head_parameters) / t
    assert held == pytest.approx(body + (edge if p == 1 else edge / 2), rel=0.01)


def test_few_key_value_heads_are_kept_by_several_ranks():
    shape = load_model("qwen2.5-7b")
    width = 2
    assert kv_bytes(shape, np.array([4.0]), np.ones(1), width) == kv_bytes(
        shape, np.array([8.0]), np.ones(1), width
    )


def test_activations_of_2205_05198():
    """Without dropout and with a gated MLP of 8/3 h: s b h (34 - 6 + 2 + ...) made explicit."""
    shape = load_model("llama-2-7b")
    tokens = np.array([2048.0])
    one = 2 * (8 * 4096 + 3 * 11008) * 32
    chosen = activations(shape, way("megatron"), tokens, 2048, 2)[0]
    assert chosen == pytest.approx(2048 * (one + 2 * 4096))
    everything = activations(shape, way("megatron", recompute="none"), tokens, 2048, 2)[0]
    assert everything - chosen == pytest.approx(5 * 32 * 2048 * 2048 * 32)
    full = activations(shape, way("megatron", recompute="full"), tokens, 2048, 2)[0]
    assert full == pytest.approx(2048 * (2 * 4096 * 33 + one / 32))
    halved = activations(shape, way("megatron", t=2), tokens, 2048, 2)[0]
    assert halved == pytest.approx(chosen / 2)


def test_the_first_stage_keeps_as_much_as_without_pipeline():
    """1F1B: L/p layers of p micro-batches."""
    shape = load_model("llama-2-7b")
    tokens = np.array([2048.0])
    alone = activations(shape, way("megatron"), tokens, 2048, 2)
    staged = activations(shape, way("megatron", p=4), tokens, 2048, 2)
    assert staged == pytest.approx(alone)

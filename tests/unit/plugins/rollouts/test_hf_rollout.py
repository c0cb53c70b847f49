"""The plain reference: weights are shared, errors are clear."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rlframe.config import ModelConfig
from rlframe.errors import ModelError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.hf import HFRollout


@pytest.fixture(params=["qwen2", "llama"])
def path(request, tmp_path):
    return tiny_model(tmp_path, request.param)


def make(path, **options):
    spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
    return HFRollout(HFRollout.Config(**options), spec)


def test_shares_every_tensor_and_leaves_the_trainers_alone(path):
    reference, engine = RolloutReference(path), make(path)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    engine.load(0, dict(reference.model.named_parameters()))
    asyncio.run(engine.generate(Request((3, 4), Sampling(max_new_tokens=2))))
    mine = dict(engine.runner.model.named_parameters())
    for name, tensor in reference.tensors().items():
        assert mine[name].data_ptr() == tensor.data_ptr()
    assert all(p.requires_grad for p in reference.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_do_not_fit_are_named(path):
    tensors = RolloutReference(path).tensors()
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=name):
        make(path).load(0, {n: t for n, t in tensors.items() if n != name})
    with pytest.raises(ModelError, match="other"):
        make(path).load(0, {**tensors, "other": torch.zeros(1)})


def test_requests_of_unequal_sampling_do_not_share_a_call(path):
    engine = make(path, max_batch=3)
    engine.load(0, RolloutReference(path).tensors())
    settings = [Sampling(max_new_tokens=n, min_new_tokens=n) for n in (2, 5, 2, 2, 2)]

    async def go():
        return await asyncio.gather(*[engine.generate(Request((3,), s)) for s in settings])

    assert [len(got.token_ids) for got in asyncio.run(go())] == [2, 5, 2, 2, 2]

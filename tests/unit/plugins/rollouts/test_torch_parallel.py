"""Generation over several ranks: equal to one rank, in lockstep, and broken with a reason."""

from __future__ import annotations

import asyncio

import pytest

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_kit import PROMPTS, SAMPLINGS
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.engine import TorchRollout
from tests.unit.plugins.rollouts.replica_rig import Followers, replica

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=[2, 4])
def followers(request):
    made = Followers(request.param)
    yield made
    made.end()


def run(engine, *requests):
    async def go():
        return await asyncio.gather(*[engine.generate(r) for r in requests])

    return asyncio.run(go())


MODELS = {
    "qwen2": {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
    "llama": {
        "kind": "llama",
        "hidden_size": 48,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_seeds_give_the_tokens_of_one_rank(name, followers, tmp_path):
    """Odd vocabulary, tied and not, biases, heads that are repeated."""
    path = str(tiny_model(tmp_path / "m", **MODELS[name]))
    spec = RolloutSpec(path, ModelConfig(path=path))
    tensors = RolloutReference(tmp_path / "m").tensors()
    requests = [
        Request(prompt, sampling, group_id=i, episode_id=10 * i + j)
        for i, prompt in enumerate(PROMPTS)
        for j, sampling in enumerate(SAMPLINGS)
    ]
    alone = TorchRollout(TorchRollout.Config(max_batch=7), spec)
    alone.load(1, tensors)
    config = TorchRollout.Config(max_batch=7, tensor_parallel=1 + len(followers.pipes))
    many = replica(followers, config, spec)
    many.load(1, tensors)
    for one, other in zip(run(alone, *requests), run(many, *requests), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    many.close()

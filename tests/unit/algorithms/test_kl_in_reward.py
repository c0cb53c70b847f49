"""The KL in the reward as a method's option: roles, columns, weight, snapshot."""

from __future__ import annotations

import pytest
import torch

from rlframe.testing.algorithm_cases import MIXED, make_case
from rlframe.testing.toy_task import ToyTask
from rlframe_algorithms.kl_in_reward import KLInReward


class Method(KLInReward):
    """REINFORCE with the KL of the response in its reward."""

    def advantages(self, batch):
        rewards = batch["rewards"]
        if self.config.kl_reward_coef:
            rewards = rewards + self.kl_rewards(batch).sum(1)
        return {"advantages": rewards}

    def policy_loss(self, out, batch):
        return -out.logprobs * batch["advantages"]


def test_off_by_default():
    method = Method()
    assert [role.name for role in method.roles()] == ["policy"]
    assert "old_logprobs" not in method.reads
    assert dict(method.scalars()) == {}
    assert method.state_dict() == {}


def test_one_reference_serves_the_loss_and_the_reward():
    for options in ({"kl_reward_coef": 0.1}, {"kl_reward_coef": 0.1, "kl_coef": 0.1}):
        names = [role.name for role in Method(**options).roles()]
        assert names == ["policy", "reference"]


def test_rewards_of_a_batch():
    method = Method(kl_reward_coef=0.5)
    batch = make_case(method, MIXED, masked_value=float("nan")).batch
    old, ref, mask = batch["old_logprobs"], batch["ref_logprobs"], batch["response_mask"]
    got = method.kl_rewards(batch)
    assert (got[~mask] == 0).all()
    torch.testing.assert_close(got[mask], -0.5 * (old - ref)[mask])


def test_the_weight_adapts_and_is_part_of_the_snapshot():
    method = Method(kl_reward_coef=0.1, kl_target=2.0, kl_horizon=100.0)
    method.after_step({"actor/reward_kl": 100.0, "collect/episodes": 50.0})
    assert method.scalars()["kl_reward_coef"] == pytest.approx(0.1 * 1.1)
    method.after_step({"actor/loss": 1.0})
    copy = Method(kl_reward_coef=0.1, kl_target=2.0, kl_horizon=100.0)
    copy.load_state_dict(method.state_dict())
    assert dict(copy.scalars()) == dict(method.scalars()) == {"kl_reward_coef": pytest.approx(0.11)}


def test_a_large_penalty_keeps_the_policy_at_the_reference():
    free, held = ToyTask(Method()), ToyTask(Method(kl_reward_coef=20.0))
    free.run(30)
    held.run(30)
    assert held.success() < 0.5 < free.success()


def test_the_toy_task_steers_the_weight():
    method = Method(kl_reward_coef=0.01, kl_target=0.05, kl_horizon=200.0)
    ToyTask(method).run(20)
    assert method.scalars()["kl_reward_coef"] > 0.012


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kl_reward_coef": -0.1}, "kl_reward_coef must be at least 0"),
        ({"kl_target": 1.0}, "kl_target needs a kl_reward_coef"),
        ({"kl_reward_coef": 0.1, "kl_target": 0.0}, "kl_target must be above 0"),
        ({"kl_reward_coef": 0.1, "kl_horizon": 0.0}, "kl_horizon must be above 0"),
        ({"kl_reward_estimator": "k3+"}, "k1, k2, k3"),
    ],
)
def test_ranges(options, said):
    with pytest.raises(ValueError, match=said):
        Method.Config(**options)

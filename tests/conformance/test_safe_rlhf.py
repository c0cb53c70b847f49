"""Safe RLHF: float64 reference, the multiplier's arithmetic, and a reward against a cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlframe.batching.batch import Batch
from rlframe.testing.algorithm_kit import AlgorithmKit
from rlframe.testing.toy_task import ToyTask
from rlframe_algorithms.safe_rlhf import SafeRLHF

WEIGHT = "lagrange_multiplier"


def mean_over(values, mask):
    kept = values[mask].tolist()
    return math.fsum(kept) / len(kept)


def gae(rewards, values, mask, gamma, lam):
    """Sums of (gamma lambda)^k delta over the sampled tokens, row by row."""
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for i, row in enumerate(mask.tolist()):
        slots = [t for t, inside in enumerate(row) if inside]
        v = [float(values[i, t]) for t in slots] + [0.0]
        d = [float(rewards[i, t]) + gamma * v[n + 1] - v[n] for n, t in enumerate(slots)]
        for n, t in enumerate(slots):
            advantages[i, t] = sum((gamma * lam) ** k * x for k, x in enumerate(d[n:]))
            returns[i, t] = v[n] + advantages[i, t]
    return advantages, returns


class SafeReference(AlgorithmKit):
    name = "safe-rlhf"

    def algorithm(self):
        """As after a step whose episodes cost 1.5 each."""
        made = super().algorithm()
        made._log_lambda = math.log(1.3)
        return made

    def reference_loss(self, role, columns, outputs):
        config, mask = self.algorithm().config, columns["loss_mask"]
        old, ref = columns["old_logprobs"].double(), columns["ref_logprobs"].double()
        sampled = columns["response_mask"]
        kl = config.kl_reward_coef * (old - ref) / 2
        rewards, costs = columns["token_rewards"].double() - kl, kl.clone()
        for i, row in enumerate(sampled.tolist()):
            slots = [t for t, inside in enumerate(row) if inside]
            if slots:
                rewards[i, slots[-1]] += float(columns["rewards"][i])
                costs[i, slots[-1]] += float(columns["costs"][i])
        lam, gamma, clip = config.gae_lambda, config.gamma, config.value_clip
        made = {
            "critic": gae(rewards, columns["values"].double(), sampled, gamma, lam),
            "cost_critic": gae(costs, columns["cost_values"].double(), sampled, gamma, lam),
        }
        if role != "policy":
            name = {"critic": "values", "cost_critic": "cost_values"}[role]
            values, before, returns = outputs["values"], columns[name].double(), made[role][1]
            near = before + (values - before).clamp(-clip, clip)
            worst = torch.maximum((values - returns).square(), (near - returns).square())
            return mean_over(worst, mask) / 2
        advantages = (made["critic"][0] - 1.3 * made["cost_critic"][0]) / 2.3
        ratio = (outputs["logprobs"] - old).exp()
        clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        return mean_over(loss, mask)


class TestSafeRLHF(SafeReference):
    pass


class TestSafeRLHFDiscounted(SafeReference):
    options = {"gamma": 0.9, "gae_lambda": 0.7, "kl_reward_coef": 0.05}  # noqa: RUF012


# --- the multiplier -------------------------------------------------------------------------------


def batch_of_costs(costs, episodes=None, train=None):
    count = len(costs)
    return Batch.from_columns(
        {
            "costs": np.array(costs, np.float32),
            "episode_ids": np.arange(count) if episodes is None else np.array(episodes),
            "train": np.ones(count, bool) if train is None else np.array(train),
        }
    )


def test_lambda_follows_the_mean_cost():
    method = SafeRLHF(threshold=0.5, lambda_init=2.0, lambda_lr=0.1)
    method.scored(batch_of_costs([1.0, 2.0]))
    log = math.log(2) + 0.1 * 2 * (1.5 - 0.5)
    assert method.scalars()[WEIGHT] == pytest.approx(math.exp(log))
    assert method.scalars()["episode_cost"] == 1.5
    method.scored(batch_of_costs([-4.0]))
    log += 0.1 * math.exp(log) * (-1 / 3 - 0.5)
    assert method.scalars()[WEIGHT] == pytest.approx(math.exp(log))


def test_an_episode_counts_once_and_what_is_not_trained_on_never():
    method = SafeRLHF()
    method.scored(
        batch_of_costs([1.0, 1.0, 4.0, 9.0, math.nan], [7, 7, 8, 9, 10], [True] * 3 + [False, True])
    )
    assert method.scalars()["episode_cost"] == 2.5


def test_the_window_forgets_and_the_weight_has_a_cap():
    method = SafeRLHF(cost_window=4, lambda_max=3.0)
    for cost in range(100):
        method.scored(batch_of_costs([float(cost)]))
    assert method.scalars()["episode_cost"] == np.mean([96, 97, 98, 99])
    assert method.scalars()[WEIGHT] == pytest.approx(3.0)
    for _ in range(60):
        method.scored(batch_of_costs([-1.0] * 4))
    assert 0 < method.scalars()[WEIGHT] < 0.5


def test_window_and_weight_are_in_the_snapshot():
    method = SafeRLHF(cost_window=3)
    method.scored(batch_of_costs([3.0, 1.0, 2.0, 5.0]))
    again = SafeRLHF(cost_window=3)
    again.load_state_dict(method.state_dict())
    for one in (method, again):
        one.scored(batch_of_costs([7.0]))
    assert again.scalars() == method.scalars()
    assert again.state_dict() == method.state_dict()


@pytest.mark.parametrize(
    "options",
    [
        {"lambda_init": 0},
        {"lambda_init": 6.0},
        {"lambda_lr": -1},
        {"cost_window": 0},
        {"ptx_coef": -1},
        {"lambda_max": 0},
    ],
)
def test_ranges_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SafeRLHF.Config(**options)


# --- a reward against a cost ----------------------------------------------------------------------


class Conflict(ToyTask):
    """The right token of the first position costs 1: what is rewarded is not free."""

    def __init__(self, algorithm):
        super().__init__(algorithm, lr=0.05)
        for prompt, (first, _) in enumerate(self._targets):
            self._tables["cost"][prompt, 0, first] = 1.0

    def chances(self):
        """Mean probability of the right token at each position."""
        chance = self._tables["policy"].detach().softmax(-1)
        wanted = torch.tensor(self._targets)[..., None]
        return chance.gather(-1, wanted)[..., 0].mean(0).tolist()


def learned(threshold, steps=60, **options):
    method = SafeRLHF(
        threshold=threshold, samples_per_prompt=16, kl_reward_coef=0.0, epochs=1, **options
    )
    task = Conflict(method)
    first, last, weights = [], [], []
    for step in range(steps):
        task.run(1)
        weights.append(method.scalars()[WEIGHT])
        if step >= steps * 2 // 3:
            a, b = task.chances()
            first.append(a)
            last.append(b)
    return np.mean(first), np.mean(last), weights


def test_the_constraint_is_met_where_reward_and_cost_conflict():
    """Half of the costly tokens are allowed: the weight rises and falls about that."""
    options = {"lambda_init": 0.5, "lambda_lr": 0.6, "lambda_max": 1.5, "cost_window": 64}
    costly, free, weights = learned(0.5, 110, **options)
    assert costly == pytest.approx(0.5, abs=0.15)
    assert free > 0.9
    assert max(weights) == pytest.approx(1.5)
    assert min(weights[:40]) < 0.3
    assert min(weights[-20:]) < 0.5


def test_a_constraint_that_does_not_bind_lets_the_weight_go():
    costly, free, weights = learned(1.5, 90, lambda_lr=0.3)
    assert min(costly, free) > 0.8
    assert weights[-1] < 0.2
    assert weights[-1] < weights[0]

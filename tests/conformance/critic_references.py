"""PPO's family and the covariance methods against float64 references, written from the papers."""

from __future__ import annotations

import math

import torch

from rlframe.testing.algorithm_kit import AlgorithmKit
from tests.conformance.critic_free import plain_reduction


def mean_over(values, mask):
    kept = values[mask].tolist()
    return math.fsum(kept) / len(kept)


def clipped(logp, old, advantages, low, high, dual):
    """Token by token, by the definition."""
    out = torch.zeros_like(logp)
    for i, j in torch.cartesian_prod(*map(torch.arange, logp.shape)).tolist():
        r, a = math.exp(logp[i, j] - old[i, j]), float(advantages[i, j])
        loss = -min(r * a, min(max(r, 1 - low), 1 + high) * a)
        out[i, j] = min(loss, -dual * a) if dual is not None and a < 0 else loss
    return out


def token_rewards(columns, config):
    """Outcome at the last sampled token, the environment's rewards, minus the KL."""
    rewards = columns["token_rewards"].double().clone()
    for i, mask in enumerate(columns["response_mask"].tolist()):
        slots = [t for t, inside in enumerate(mask) if inside]
        if slots:
            rewards[i, slots[-1]] += float(columns["rewards"][i])
    if config.kl_reward_coef:
        gap = columns["old_logprobs"].double() - columns["ref_logprobs"].double()
        rewards -= config.kl_reward_coef * gap
    return rewards


def estimates(columns, config):
    """Advantages and returns: sums of (gamma lambda)^k delta over the sampled tokens."""
    rewards, values = token_rewards(columns, config), columns["values"].double()
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for i, mask in enumerate(columns["response_mask"].tolist()):
        slots = [t for t, inside in enumerate(mask) if inside]
        lam = config.gae_lambda
        if config.length_alpha is not None:
            lam = min(max(1 - 1 / (config.length_alpha * max(len(slots), 1)), 0), 1)
        other = lam if config.critic_lambda is None else config.critic_lambda
        if config.warmup_returns == "monte-carlo" and config.critic_warmup:
            other = 1.0
        v = [float(values[i, t]) for t in slots] + [0.0]
        d = [float(rewards[i, t]) + config.gamma * v[n + 1] - v[n] for n, t in enumerate(slots)]
        for n, t in enumerate(slots):
            advantages[i, t] = sum((config.gamma * lam) ** k * x for k, x in enumerate(d[n:]))
            returns[i, t] = v[n] + sum((config.gamma * other) ** k * x for k, x in enumerate(d[n:]))
    return advantages, returns


def whitened(advantages, mask):
    mean = mean_over(advantages, mask)
    variance = mean_over((advantages - mean).square(), mask)
    return (advantages - mean) / math.sqrt(variance + 1e-8)


class CriticReference(AlgorithmKit):
    def reference_loss(self, role, columns, outputs):
        config, mask = self.algorithm().config, columns["loss_mask"]
        advantages, returns = estimates(columns, config)
        if role == "critic":
            values, old = outputs["values"], columns["values"].double()
            plain = (values - returns).square()
            if config.value_clip is None:
                return mean_over(plain, mask) / 2
            near = old + (values - old).clamp(-config.value_clip, config.value_clip)
            return mean_over(torch.maximum(plain, (near - returns).square()), mask) / 2
        if config.whiten:
            trained = columns["response_mask"] & columns["train"][:, None]
            advantages = whitened(advantages, trained)
        return self.policy_reference(config, columns, outputs, advantages, mask)

    @staticmethod
    def policy_reference(config, columns, outputs, advantages, mask):
        logp, old = outputs["logprobs"], columns["old_logprobs"].double()
        high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
        loss = clipped(logp, old, advantages, config.clip_ratio, high, config.dual_clip)
        if config.rollout_correction in ("truncate", "mask"):
            weight = (old - columns["rollout_logprobs"].double()).exp()
            if config.rollout_correction == "mask":
                inside = (weight >= config.rollout_low) & (weight <= config.rollout_high)
                sampled = columns["response_mask"] & columns["train"][:, None]
                assert torch.equal(mask, sampled & inside)
            else:
                weight = weight.clamp(max=config.rollout_cap)
            loss = loss * weight
        total = plain_reduction(loss, mask, config.reduction)
        if config.entropy_coef:
            total -= config.entropy_coef * plain_reduction(
                outputs["entropy"], mask, config.reduction
            )
        if getattr(config, "nll_coef", 0):
            right = mask & (columns["rewards"] >= config.correct_reward)[:, None]
            total -= config.nll_coef * mean_over(logp, right)
        return total


class VAPOReference(CriticReference):
    """Two tokens make lambda 0: the likelihood of right answers alone teaches the toy's first."""

    toy_steps = 60


# --- covariance -----------------------------------------------------------------------------------


def covariance(columns, outputs):
    mask = columns["loss_mask"]
    logp, advantages = outputs["logprobs"], columns["advantages"].double()
    return (logp - mean_over(logp, mask)) * (advantages - mean_over(advantages, mask))


def count_of(share, mask):
    return max(int(share * int(mask.sum()) + 1e-9), 1) if share else 0


class ClipCovReference(AlgorithmKit):
    """All tokens in the range are drawn, or none is there; the draw itself has tests of its own."""

    def reference_loss(self, role, columns, outputs):
        config, mask = self.algorithm().config, columns["loss_mask"]
        logp, old = outputs["logprobs"], columns["old_logprobs"].double()
        advantages = columns["advantages"].double()
        loss = clipped(logp, old, advantages, config.clip_ratio, config.clip_ratio, None)
        ratio, cov = (logp - old).exp(), covariance(columns, outputs)
        held = (ratio < 1 - config.clip_ratio) & (advantages < 0)
        held |= (ratio > 1 + config.clip_ratio) & (advantages > 0)
        drawn = mask & (cov > config.cov_low) & (cov < config.cov_high) & ~held
        assert int(drawn.sum()) <= count_of(config.cov_share, mask)
        assert drawn.any() == (config.cov_low < 1)
        return plain_reduction(torch.where(drawn, 0.0, loss), mask, config.reduction)


class KLCovReference(AlgorithmKit):
    def reference_loss(self, role, columns, outputs):
        config, mask = self.algorithm().config, columns["loss_mask"]
        logp, old = outputs["logprobs"], columns["old_logprobs"].double()
        loss = -(logp - old).exp() * columns["advantages"].double()
        cov = covariance(columns, outputs)
        threshold = sorted(cov[mask].tolist())[-count_of(config.cov_share, mask)]
        top = mask & (cov >= threshold)
        assert int(top.sum()) == count_of(config.cov_share, mask)
        loss = loss + config.cov_kl_coef * torch.where(top, (logp - old).abs(), 0.0)
        return plain_reduction(loss, mask, config.reduction)


REFERENCES = {
    "ppo": CriticReference,
    "vapo": VAPOReference,
    "decoupled-ppo": CriticReference,
    "clip-cov": ClipCovReference,
    "kl-cov": KLCovReference,
}

VARIANTS = {
    "ppo": {
        "everything": {
            "gamma": 0.9,
            "gae_lambda": 0.8,
            "critic_lambda": 0.6,
            "clip_ratio_high": 0.28,
            "dual_clip": 1.5,
            "value_clip": None,
            "whiten": False,
            "entropy_coef": 0.01,
            "kl_reward_coef": 0.05,
            "minibatch_prompts": 2,
        },
        "vc-ppo": {"critic_lambda": 1.0, "critic_warmup": 4, "warmup_returns": "monte-carlo"},
        "masked": {"rollout_correction": "mask", "epochs": 1},
    },
    "vapo": {"short": {"length_alpha": 0.4, "critic_warmup": 0, "gamma": 0.95}},
    "decoupled-ppo": {
        "masked": {"rollout_correction": "mask", "rollout_low": 0.0, "rollout_high": 2.0}
    },
    "clip-cov": {"many": {"cov_share": 0.5, "cov_low": 0.1, "epochs": 2, "minibatch_prompts": 2}},
    "kl-cov": {"many": {"cov_share": 0.4, "cov_kl_coef": 0.5, "epochs": 2, "minibatch_prompts": 2}},
}
"""Further options of our own methods, each a class of its own."""

"""Float64 references of the methods without a critic, row by row from the papers' definitions."""

from __future__ import annotations

import math
import statistics

import torch

from rlframe.testing.algorithm_kit import FIXED_LENGTH, AlgorithmKit


def plain_reduction(values, mask, reduction):
    rows = [v[m].tolist() for v, m in zip(values, mask, strict=True) if m.any()]
    tokens = sum(map(len, rows))
    return {
        "token-mean": lambda: math.fsum(map(math.fsum, rows)) / tokens,
        "seq-mean-token-mean": lambda: math.fsum(math.fsum(r) / len(r) for r in rows) / len(rows),
        "seq-mean-token-sum": lambda: math.fsum(map(math.fsum, rows)) / len(rows),
        "fixed-length": lambda: math.fsum(map(math.fsum, rows)) / (len(rows) * FIXED_LENGTH),
    }[reduction]()


def k3_plus(logp, ref):
    """The value of k3."""
    return (ref - logp).exp() - 1 - (ref - logp)


KL = {
    "k1": lambda logp, ref: logp - ref,
    "k2": lambda logp, ref: (logp - ref) ** 2 / 2,
    "k3": k3_plus,
    "k3+": k3_plus,
}


class CriticFree(AlgorithmKit):
    """A reference of everything but :meth:`token_loss`, which each method has its own."""

    def reference_loss(self, role, columns, outputs):
        config = self.algorithm().config
        mask, logp = columns["loss_mask"], outputs["logprobs"]
        advantages = self.advantages(columns, config)
        loss = torch.zeros_like(logp)
        for i in range(len(logp)):
            if mask[i].any():
                m = mask[i]
                old = columns[self.anchor(config)][i][m].double().tolist()
                found = self.row_loss(logp[i][m].tolist(), old, advantages[i][m].tolist(), config)
                loss[i][m] = torch.tensor(found, dtype=torch.float64)
        total = plain_reduction(loss, mask, config.reduction)
        if config.kl_coef:
            kl = KL[config.kl_estimator](logp, columns["ref_logprobs"].double())
            total += config.kl_coef * plain_reduction(kl, mask, config.reduction)
        if config.entropy_coef:
            bonus = plain_reduction(outputs["entropy"], mask, config.reduction)
            total -= config.entropy_coef * bonus
        return total

    def anchor(self, config):
        return "old_logprobs"

    def row_loss(self, logp, old, advantages, config):
        """The losses of a response's counted tokens."""
        terms = zip(logp, old, advantages, strict=True)
        return [self.token_loss(p, q, a, config) for p, q, a in terms]

    def token_loss(self, logp, old, advantage, config):
        return -advantage * logp

    # --- advantages ---------------------------------------------------------------------------

    def advantages(self, columns, config):
        """(B, R) of the same number along a row."""
        rows = self.row_advantages(columns, config)
        width = columns["response_mask"].shape[1]
        return torch.tensor(rows, dtype=torch.float64)[:, None].expand(-1, width)

    def row_advantages(self, columns, config):
        if config.advantage == "gdpo":
            return decoupled(columns, config.reward_weights)
        return outcome(columns, config.advantage, self.shaped(columns, config))

    def shaped(self, columns, config):
        """Reward, overlong penalty and KL of each row's episode."""
        rewards = columns["rewards"].double().tolist()
        episodes = columns["episode_ids"].tolist()
        tokens = columns["turn_tokens"].tolist()
        out = []
        for i, reward in enumerate(rewards):
            same = [j for j, e in enumerate(episodes) if e == episodes[i]]
            value = reward
            if config.overlong_buffer:
                most = columns["response_limit"][i].item()
                free = most - config.overlong_buffer * most
                over = (max(tokens[j] for j in same) - free) / (most - free)
                value -= config.overlong_penalty * min(max(over, 0), 1)
            if config.kl_reward_coef:
                value -= config.kl_reward_coef * sum(
                    sum(self.token_kl(columns, j, config)) for j in same
                )
            out.append(value)
        return out

    def token_kl(self, columns, i, config):
        m = columns["response_mask"][i]
        old, ref = (columns[f"{name}_logprobs"][i][m].double() for name in ("old", "ref"))
        return KL[config.kl_reward_estimator](old, ref).tolist()


def counted(columns):
    return (columns["train"] & columns["response_mask"].any(1)).tolist()


def no_signal(values):
    return len(values) < 2 or max(values) - min(values) <= 1e-6 * max(1, abs(max(values)))


def members(columns, values, i):
    """Values of the episodes of row i's group that count, and of their rows the tokens."""
    groups, episodes = columns["group_ids"].tolist(), columns["episode_ids"].tolist()
    counts, tokens = counted(columns), columns["response_tokens"].tolist()
    known, lengths = {}, {}
    for j in range(len(values)):
        if groups[j] == groups[i] and counts[j]:
            known[episodes[j]] = values[j]
            lengths[episodes[j]] = lengths.get(episodes[j], 0) + tokens[j]
    return list(known.values()), list(lengths.values())


def outcome(columns, kind, values):
    counts, out = counted(columns), []
    everyone = {
        e: (v, i)
        for i, (e, v) in enumerate(zip(columns["episode_ids"].tolist(), values, strict=True))
        if counts[i]
    }
    for i, value in enumerate(values):
        others, lengths = members(columns, values, i)
        if kind in ("reward", "batch", "remax"):
            out.append(apart(columns, kind, values, i, [v for v, _ in everyone.values()]))
        elif not counts[i] or no_signal(others):
            out.append(0.0)
        else:
            useful = sum(
                not no_signal(members(columns, values, j)[0]) for _, j in everyone.values()
            )
            alpha = len(everyone) / useful
            out.append(in_group(kind, value, others, lengths, alpha))
    return out


def in_group(kind, value, others, lengths, alpha):
    mean = math.fsum(others) / len(others)
    best = max(others)
    rest = sorted(others)[:-1]
    weighted = math.fsum(n * r for n, r in zip(lengths, others, strict=True))
    return {
        "grpo": lambda: (value - mean) / (statistics.stdev(others) + 1e-6),
        "dr-grpo": lambda: value - mean,
        "rloo": lambda: value - (math.fsum(others) - value) / (len(others) - 1),
        "opo": lambda: value - weighted / sum(lengths),
        "gpg": lambda: alpha * (value - mean),
        "maxrl": lambda: (value - mean) / mean if mean else 0.0,
        "pass@k": lambda: best - max(rest) if value == best else 0.0,
    }[kind]()


def apart(columns, kind, values, i, everyone):
    """Advantages that need no signal in the group."""
    if not counted(columns)[i]:
        return 0.0
    if kind == "reward":
        return values[i]
    if kind == "batch":
        spread = statistics.pvariance(everyone)
        return (values[i] - statistics.fmean(everyone)) / math.sqrt(spread + 1e-8)
    groups, train = columns["group_ids"].tolist(), columns["train"].tolist()
    greedy = [v for v, g, t in zip(values, groups, train, strict=True) if g == groups[i] and not t]
    return values[i] - greedy[0] if greedy else 0.0


def decoupled(columns, weights):
    parts = columns["reward_parts"].double()
    weights = weights or (1.0,) * parts.shape[1]
    singles = [outcome(columns, "grpo", parts[:, k].tolist()) for k in range(parts.shape[1])]
    mixed = [
        sum(w * s[i] for w, s in zip(weights, singles, strict=True)) for i in range(len(parts))
    ]
    white = outcome(columns, "batch", mixed)
    flat = [
        all(no_signal(members(columns, parts[:, k].tolist(), i)[0]) for k in range(parts.shape[1]))
        for i in range(len(parts))
    ]
    return [0.0 if f else w for f, w in zip(flat, white, strict=True)]


# --- one class a loss -------------------------------------------------------------------------


class ClippedReference(CriticFree):
    def token_loss(self, logp, old, advantage, config):
        ratio = math.exp(logp - old)
        high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
        held = min(max(ratio, 1 - config.clip_ratio), 1 + high)
        loss = -min(ratio * advantage, held * advantage)
        if config.dual_clip is not None and advantage < 0:
            loss = min(loss, -config.dual_clip * advantage)
        return loss


class PlusPlusReference(ClippedReference):
    def advantages(self, columns, config):
        mask = columns["response_mask"] & columns["train"][:, None]
        plain = config.__class__(**{**vars(config), "kl_reward_coef": 0.0})
        outcomes = outcome(columns, config.advantage, self.shaped(columns, plain))
        out = torch.zeros(mask.shape, dtype=torch.float64)
        for i in range(len(mask)):
            rewards = columns["token_rewards"][i][mask[i]].double().tolist()
            if not rewards:
                continue
            rewards[-1] += outcomes[i]
            if config.kl_reward_coef:
                penalties = self.token_kl(columns, i, config)
                rewards = [
                    r - config.kl_reward_coef * k for r, k in zip(rewards, penalties, strict=True)
                ]
            to_go = [
                sum(config.gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))
                for t in range(len(rewards))
            ]
            out[i][mask[i]] = torch.tensor(to_go, dtype=torch.float64)
        known = out[mask]
        spread = known.var(correction=0) + 1e-8
        return torch.where(mask, (out - known.mean()) / spread.sqrt(), 0.0)


class GSPOReference(CriticFree):
    def row_loss(self, logp, old, advantages, config):
        ratio = math.exp(sum(p - q for p, q in zip(logp, old, strict=True)) / len(logp))
        high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
        held = min(max(ratio, 1 - config.clip_ratio), 1 + high)
        return [-min(ratio * a, held * a) for a in advantages]


class GMPOReference(CriticFree):
    def row_loss(self, logp, old, advantages, config):
        """The paper's product of clipped ratios, to the power of sign and 1 / length."""
        advantage = advantages[0]
        if advantage == 0:
            return [0.0] * len(logp)
        sign = math.copysign(1, advantage)
        low, high = math.exp(-config.clip_log_ratio), math.exp(config.clip_log_ratio_high)
        product = 1.0
        for p, q in zip(logp, old, strict=True):
            powered = math.exp(p - q) ** sign
            bounds = (low, high) if sign > 0 else (1 / high, 1 / low)
            product *= min(powered, min(max(powered, bounds[0]), bounds[1])) ** sign
        return [-advantage * product ** (1 / len(logp))] * len(logp)


class CISPOReference(CriticFree):
    def token_loss(self, logp, old, advantage, config):
        weight = min(math.exp(logp - old), 1 + config.clip_ratio_high)
        if config.clip_ratio is not None:
            weight = max(weight, 1 - config.clip_ratio)
        return -weight * advantage * logp


class SAPOReference(CriticFree):
    def token_loss(self, logp, old, advantage, config):
        tau = config.tau_positive if advantage > 0 else config.tau_negative
        gate = 1 / (1 + math.exp(-tau * (math.exp(logp - old) - 1)))
        return -gate * 4 / tau * advantage


class DPPOReference(CriticFree):
    def anchor(self, config):
        return f"{config.anchor}_logprobs"

    def token_loss(self, logp, old, advantage, config):
        p, q = math.exp(logp), math.exp(old)
        distance = abs(p - q)
        if config.divergence == "kl":
            distance = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        threshold = config.threshold or {"tv": 0.15, "kl": 0.05}[config.divergence]
        left = (p > q) if advantage > 0 else (p < q)
        if left and distance > threshold:
            return 0.0
        return -min(p / q, config.clip_weight) * advantage * logp


class TOPRReference(CriticFree):
    def row_loss(self, logp, old, advantages, config):
        ratio = math.exp(sum(logp) - sum(old))
        weights = [1.0 if a >= 0 else min(ratio, config.clip_weight) for a in advantages]
        return [-w * a * p for w, a, p in zip(weights, advantages, logp, strict=True)]


BASES = {
    **dict.fromkeys(("grpo", "dr-grpo", "dapo", "gdpo"), ClippedReference),
    **dict.fromkeys(("reinforce", "rloo", "remax", "opo", "gpg"), CriticFree),
    **dict.fromkeys(("reinforce++", "reinforce++-baseline"), PlusPlusReference),
    "gspo": GSPOReference,
    "gmpo": GMPOReference,
    "cispo": CISPOReference,
    "sapo": SAPOReference,
    "dppo": DPPOReference,
    "topr": TOPRReference,
}

MIXES = {
    kind: {"advantage": kind}
    for kind in ("dr-grpo", "rloo", "opo", "gpg", "gdpo", "maxrl", "batch", "reward")
}
MIXES["pass@k"] = {"advantage": "pass@k", "samples_per_prompt": 2}
"""Of two: with eight, the best of the toy task's groups is right long before the policy is."""

VARIANTS = {
    "grpo": {
        **MIXES,
        "dr": {"advantage": "dr-grpo", "reduction": "fixed-length", "kl_coef": 0.0},
        "wide": {"clip_ratio_high": 0.28, "dual_clip": 3.0, "entropy_coef": 0.01},
        "epochs": {"epochs": 3, "minibatch_prompts": 2, "kl_estimator": "k3"},
        "kl-reward": {"kl_reward_coef": 0.1, "kl_reward_estimator": "k3", "kl_coef": 0.0},
        "truncated": {"mask_truncated": True},
    },
    "dapo": {"long": {"overlong_buffer": 0.9, "overlong_penalty": 0.5}},
    "gspo": {"wide": {"clip_ratio": 0.3, "clip_ratio_high": None, "epochs": 2}},
    "gmpo": {"tight": {"clip_log_ratio": 0.1, "clip_log_ratio_high": 0.2, "epochs": 2}},
    "cispo": {"both": {"clip_ratio_high": 0.2, "clip_ratio": 0.2, "epochs": 2}},
    "sapo": {"steep": {"tau_positive": 3.0, "tau_negative": 2.0}},
    "gdpo": {"weights": {"reward_weights": (0.25, 2.0)}},
    "dppo": {
        "kl": {"divergence": "kl", "anchor": "old", "epochs": 2},
        "wide": {"threshold": 0.5, "clip_weight": 2.0},
    },
    "topr": {"signed": {"advantage": "batch", "clip_weight": 0.5}},
    "reinforce": {"batch": {"advantage": "batch"}, "kl": {"kl_reward_coef": 0.2}},
    "rloo": {"bare": {"kl_reward_coef": 0.0}},
    "remax": {"two": {"samples_per_prompt": 2, "kl_reward_coef": 0.0}},
    "reinforce++": {
        "discount": {"gamma": 0.8, "kl_reward_coef": 0.3, "kl_reward_estimator": "k2"},
        "bare": {"kl_reward_coef": 0.0, "overlong_buffer": 0.9},
    },
}
"""Further options, each a class of its own; the kit learns the toy task under each."""

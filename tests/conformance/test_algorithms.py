"""Every registered algorithm passes the kit, under each reduction; ours have float64 references."""

from __future__ import annotations

import math

import pytest
import torch

from rlframe.algorithm import REDUCTIONS
from rlframe.host.host import current_host
from rlframe.testing.algorithm_kit import FIXED_LENGTH, AlgorithmKit
from rlframe.testing.pair_kit import PairKit
from tests.conformance import distill_references, preference_references


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


class GRPOReference(AlgorithmKit):
    def reference_loss(self, role, columns, outputs):
        config = self.algorithm().config
        mask, logp = columns["loss_mask"], outputs["logprobs"]
        ratio = (logp - columns["old_logprobs"].double()).exp()
        advantages = self.advantages(columns, config.normalise_std)[:, None]
        high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
        clipped = ratio.clamp(1 - config.clip_ratio, 1 + high)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        if config.dual_clip is not None:
            capped = torch.minimum(loss, -config.dual_clip * advantages)
            loss = torch.where(advantages < 0, capped, loss)
        total = plain_reduction(loss, mask, config.reduction)
        if config.kl_coef:
            kl = k3_plus(logp, columns["ref_logprobs"].double())
            total += config.kl_coef * plain_reduction(kl, mask, config.reduction)
        if config.entropy_coef:
            bonus = plain_reduction(outputs["entropy"], mask, config.reduction)
            total -= config.entropy_coef * bonus
        return total

    @staticmethod
    def advantages(columns, normalise):
        """Row by row, each episode once, by the definition."""
        rewards, out = columns["rewards"].tolist(), []
        groups, episodes = columns["group_ids"].tolist(), columns["episode_ids"].tolist()
        counts = (columns["train"] & columns["response_mask"].any(1)).tolist()
        for i in range(len(rewards)):
            known = {
                episodes[j]: rewards[j]
                for j in range(len(rewards))
                if groups[j] == groups[i] and counts[j]
            }
            values = list(known.values())
            if not counts[i] or max(values) - min(values) <= 1e-6 * max(1, abs(max(values))):
                out.append(0.0)
                continue
            mean = math.fsum(values) / len(values)
            spread = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
            out.append((rewards[i] - mean) / (math.sqrt(spread) + 1e-6 if normalise else 1.0))
        return torch.tensor(out, dtype=torch.float64)


class SFTReference(AlgorithmKit):
    def reference_loss(self, role, columns, outputs):
        config = self.algorithm().config
        mask, logp = columns["loss_mask"], outputs["logprobs"]
        total = plain_reduction(-logp, mask, config.reduction)
        if config.kl_coef:
            kl = k3_plus(logp, columns["ref_logprobs"].double())
            total += config.kl_coef * plain_reduction(kl, mask, config.reduction)
        return total


BASES = {
    "grpo": GRPOReference,
    "sft": SFTReference,
    **preference_references.REFERENCES,
    "distill": distill_references.DistillReference,
}

VARIANTS = {
    "grpo": {
        "dr": {"normalise_std": False, "reduction": "fixed-length", "kl_coef": 0.0},
        "wide": {"clip_ratio_high": 0.28, "dual_clip": 3.0, "entropy_coef": 0.01},
        "epochs": {"epochs": 3, "minibatch_prompts": 2, "kl_estimator": "k3"},
    },
    "sft": {"near": {"kl_coef": 0.02}, "epochs": {"epochs": 2, "minibatch_prompts": 1}},
    **preference_references.VARIANTS,
    "distill": distill_references.VARIANTS,
}
"""Further options of our own methods, each a class of its own."""


def _class(name: str, label: str, options: dict) -> type:
    title = "Test" + "".join(part.title() for part in f"{name}-{label}".split("-"))
    return type(title, (BASES.get(name, AlgorithmKit),), {"name": name, "options": options})


def _reductions(name: str) -> tuple[str, ...]:
    """All, but for a method that has no term per token and says so."""
    return () if issubclass(BASES.get(name, AlgorithmKit), PairKit) else REDUCTIONS


for _name in current_host().components("algorithm"):
    for _reduction in _reductions(_name):
        _made = _class(_name, _reduction, {"reduction": _reduction})
        globals()[_made.__name__] = _made
    for _label, _options in {"default": {}, **VARIANTS.get(_name, {})}.items():
        _made = _class(_name, _label, _options)
        globals()[_made.__name__] = _made


def test_every_reduction_has_a_class():
    names = current_host().components("algorithm")
    assert {"grpo", "sft"} <= set(names)
    assert sum(1 for value in globals() if value.startswith("TestGrpo")) == len(REDUCTIONS) + 4


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_the_kit_sees_a_loss_that_is_wrong(name):
    """The kit is no decoration: common mistakes are caught by it."""
    made = BASES[name]()
    made.name = name

    class Broken(type(made.algorithm())):
        def policy_loss(self, out, batch):
            return super().policy_loss(out, batch) * 2

    made.algorithm = Broken
    with pytest.raises(AssertionError):
        made.test_loss_equals_the_float64_reference()

    class Reversed(type(made.algorithm()).__base__):
        def policy_loss(self, out, batch):
            return -super().policy_loss(out, batch)

    made.algorithm = Reversed
    with pytest.raises(AssertionError):
        made.test_a_good_token_becomes_more_likely()

    class Local(Reversed.__base__):
        def policy_loss(self, out, batch):
            loss = super().policy_loss(out, batch)
            return loss - loss.mean()

    made.algorithm = Local
    with pytest.raises(AssertionError):
        made.test_splits_and_ranks_change_nothing()

"""Every registered algorithm passes the kit, under each reduction; ours have float64 references."""

from __future__ import annotations

import re

import pytest

from rlframe.algorithm import REDUCTIONS
from rlframe.host.host import current_host
from rlframe.testing.algorithm_kit import AlgorithmKit
from rlframe.testing.pair_kit import PairKit
from tests.conformance import (
    critic_free,
    critic_references,
    distill_references,
    preference_references,
)
from tests.conformance.critic_free import k3_plus, plain_reduction


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
    **critic_free.BASES,
    "sft": SFTReference,
    **preference_references.REFERENCES,
    "distill": distill_references.DistillReference,
    **critic_references.REFERENCES,
}

VARIANTS = {
    **critic_free.VARIANTS,
    "sft": {"near": {"kl_coef": 0.02}, "epochs": {"epochs": 2, "minibatch_prompts": 1}},
    **preference_references.VARIANTS,
    "distill": distill_references.VARIANTS,
    **critic_references.VARIANTS,
}
"""Further options of our own methods, each a class of its own."""


def _class(name: str, label: str, options: dict) -> type:
    words = re.split(r"[^a-z0-9]+", f"{name}-{label}".replace("++", "-plus-plus"))
    title = "Test" + "".join(part.title() for part in words)
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
    more = len(VARIANTS["grpo"])
    assert sum(1 for n in globals() if n.startswith("TestGrpo")) == len(REDUCTIONS) + 1 + more


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

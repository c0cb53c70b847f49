"""Losses on pairs in plain float64, pair by pair, from the papers' formulas."""

from __future__ import annotations

import math

import numpy as np

from rlframe.testing.pair_kit import PairKit


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def pairs(columns, values):
    """(better, worse) values of each pair."""
    found = {}
    triples = zip(columns["group_ids"].tolist(), columns["chosen"].tolist(), values, strict=True)
    for group, chosen, value in triples:
        found.setdefault(group, {})[chosen] = value
    return [(one[True], one[False]) for one in found.values()]


def mean(values):
    return math.fsum(values) / len(values)


class RewardModelReference(PairKit):
    """Once every pair is ranked right, the gradient vanishes: scores stay moderate."""

    rises = {"scores": 1.0}
    toy_success = 0.5

    def reference_loss(self, role, columns, outputs):
        scores = pairs(columns, outputs["scores"].tolist())
        loss = mean([-log_sigmoid(better - worse) for better, worse in scores])
        centre = mean([(better + worse) ** 2 for better, worse in scores])
        return loss + self.algorithm().config.centre_coef * centre


class CostModelReference(PairKit):
    rises = {"scores": -1.0}

    def extra_columns(self, rows):
        chosen = super().extra_columns(rows)["chosen"]
        return {"chosen": chosen, "safe": chosen}

    def reference_loss(self, role, columns, outputs):
        safe = pairs(columns, columns["safe"].tolist())
        costs = pairs(columns, outputs["scores"].tolist())
        coef, loss = self.algorithm().config.sign_coef, []
        for (safe_b, safe_w), (cost_b, cost_w) in zip(safe, costs, strict=True):
            signs = (-1 if safe_b else 1) * cost_b, (-1 if safe_w else 1) * cost_w
            loss.append(-log_sigmoid(cost_w - cost_b) - coef * sum(map(log_sigmoid, signs)))
        return mean(loss)

    def test_learns_the_toy_task(self):
        """The right answer gets the lower cost: its share under softmax falls."""
        task = self.toy_task()
        task.run(self.toy_steps)
        assert task.success() < 0.02


class UnsafeBoth(CostModelReference):
    """Both responses of every second pair are unsafe."""

    def extra_columns(self, rows):
        chosen = super().extra_columns(rows)["chosen"]
        unsafe = np.array([row.group % 2 == 1 for row in rows])
        return {"chosen": chosen, "safe": chosen & ~unsafe}

    def test_a_good_token_becomes_more_likely(self):
        """Not so here: the sign term of an unsafe better response is against its order."""


class DPOReference(PairKit):
    rises = {"logprobs": 1.0}

    def reference_loss(self, role, columns, outputs):
        config = self.algorithm().config
        ratios = (outputs["logprobs"] - columns["ref_logprobs"].double()).tolist()
        masks = columns["loss_mask"].tolist()
        sums = [
            math.fsum(r for r, m in zip(ratio, mask, strict=True) if m)
            for ratio, mask in zip(ratios, masks, strict=True)
        ]
        loss = []
        for better, worse in pairs(columns, sums):
            margin, e = config.beta * (better - worse), config.label_smoothing
            loss.append(-(1 - e) * log_sigmoid(margin) - e * log_sigmoid(-margin))
        return mean(loss)


REFERENCES = {"rm": RewardModelReference, "cost-model": CostModelReference, "dpo": DPOReference}
VARIANTS = {
    "rm": {"centred": {"centre_coef": 0.01}},
    "cost-model": {"half": {"sign_coef": 0.5}},
    "dpo": {"smooth": {"beta": 0.2, "label_smoothing": 0.1}, "epochs": {"epochs": 2}},
}

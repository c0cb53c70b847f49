"""Distillation in plain float64 code; its toy teacher knows the right tokens."""

from __future__ import annotations

import math

import torch

from rlframe.algorithm import Output
from rlframe.testing.algorithm_kit import FIXED_LENGTH, AlgorithmKit
from rlframe.testing.toy_task import ToyTask


class Taught(ToyTask):
    """A toy task whose teacher gives the right tokens a probability of about 0.99."""

    def __init__(self, algorithm):
        super().__init__(algorithm)
        right = torch.tensor(self._targets)[..., None]
        self._tables["teacher"] = torch.zeros_like(self._tables["teacher"]).scatter(-1, right, 6.0)

    def _outputs(self, role, micro, computes):
        if "divergence" not in computes:
            return super()._outputs(role, micro, computes)
        known = super()._outputs(role, micro, tuple(n for n in computes if n != "divergence"))
        rows = micro["prompt_ids"][:, -1]
        log_p = self._tables["policy"][rows].log_softmax(-1)
        log_q = self._tables["teacher"][rows].log_softmax(-1)
        form, p, q = role.divergence, log_p.exp(), log_q.exp()
        if form.kind == "reverse-kl":
            value = (p * (log_p - log_q)).sum(-1)
        elif form.kind == "forward-kl":
            value = (q * (log_q - log_p)).sum(-1)
        else:
            m = (form.mix * q + (1 - form.mix) * p).log()
            value = form.mix * (q * (log_q - m)).sum(-1)
            value = value + (1 - form.mix) * (p * (log_p - m)).sum(-1)
        return Output(logprobs=known.logprobs, entropy=known.entropy, divergence=value)


class DistillReference(AlgorithmKit):
    toy_steps = 60

    def reference_loss(self, role, columns, outputs):
        config = self.algorithm().config
        if config.form == "full":
            losses = outputs["divergence"]
        else:
            old = columns["old_logprobs"].double()
            gain = columns["teacher_logprobs"].double() - old
            ratio = (outputs["logprobs"] - old).exp()
            losses = -ratio * gain
            if config.clip_ratio is not None:
                clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
                losses = -torch.minimum(ratio * gain, clipped * gain)
        rows = [v[m].tolist() for v, m in zip(losses, columns["loss_mask"], strict=True) if m.any()]
        sums, lengths = [math.fsum(r) for r in rows], [len(r) for r in rows]
        return {
            "token-mean": math.fsum(sums) / sum(lengths),
            "seq-mean-token-mean": math.fsum(s / n for s, n in zip(sums, lengths, strict=True))
            / len(rows),
            "seq-mean-token-sum": math.fsum(sums) / len(rows),
            "fixed-length": math.fsum(sums) / (len(rows) * FIXED_LENGTH),
        }[config.reduction]

    def test_a_good_token_becomes_more_likely(self):
        if self.algorithm().config.form == "sampled":
            super().test_a_good_token_becomes_more_likely()

    def toy_task(self):
        return Taught(self.algorithm())


VARIANTS = {
    "sampled": {"form": "sampled"},
    "clipped": {"form": "sampled", "clip_ratio": 0.2, "samples_per_prompt": 4},
    "forward": {"divergence": "forward-kl"},
    "jsd": {"divergence": "jsd", "mix": 0.3},
}

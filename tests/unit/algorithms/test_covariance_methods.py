"""Clip-Cov and KL-Cov: what the loss of the chosen tokens becomes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlframe.algorithm import Output
from rlframe.testing.algorithm_cases import make_case
from rlframe.testing.simulated_update import micro_of
from rlframe_algorithms.clip_cov import ClipCov
from rlframe_algorithms.grpo import GRPO
from rlframe_algorithms.kl_cov import KLCov


def parts(method):
    micro = micro_of(make_case(method).batch, np.arange(14))
    generator = torch.Generator().manual_seed(1)
    shape = micro["loss_mask"].shape
    logprobs = micro["old_logprobs"] + 0.1 * torch.randn(shape, generator=generator)
    out = Output(logprobs=logprobs.requires_grad_())
    for name, column in method.minibatch(out, micro).items():
        micro[name] = column
    return micro, out


def test_drawn_tokens_have_no_gradient_and_others_are_grpos():
    method = ClipCov(cov_share=0.2, cov_low=-5.0)
    micro, out = parts(method)
    drawn, mask = micro["cov_drawn"], micro["loss_mask"]
    assert int(drawn.sum()) == int(0.2 * int(mask.sum()))
    loss = method.policy_loss(out, micro)
    plain = GRPO.policy_loss(method, out, micro)
    assert torch.equal(loss[~drawn], plain[~drawn])
    loss[mask].sum().backward()
    assert (out.logprobs.grad[drawn] == 0).all()
    assert method.metrics("policy", out, micro)["cov_drawn"].values.sum() == drawn.sum()


def test_another_seed_draws_others():
    first = parts(ClipCov(cov_share=0.2, cov_low=-5.0))[0]["cov_drawn"]
    other = parts(ClipCov(cov_share=0.2, cov_low=-5.0, cov_seed=1))[0]["cov_drawn"]
    assert first.sum() == other.sum()
    assert not torch.equal(first, other)


def test_a_share_of_none_is_grpo():
    method = ClipCov(cov_share=0.0)
    micro, out = parts(method)
    assert torch.equal(method.policy_loss(out, micro), GRPO.policy_loss(method, out, micro))


def test_the_penalty_pulls_the_chosen_tokens_back():
    method = KLCov(cov_share=0.3, cov_kl_coef=100.0)
    micro, out = parts(method)
    top, mask = micro["cov_top"], micro["loss_mask"]
    method.policy_loss(out, micro)[mask].sum().backward()
    away = (out.logprobs - micro["old_logprobs"]).detach().sign()
    assert torch.equal(out.logprobs.grad[top].sign(), away[top])
    assert int(top.sum()) == int(0.3 * int(mask.sum()))


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (ClipCov, {"cov_share": 1.1}, "cov_share must be at least 0 and at most 1"),
        (ClipCov, {"cov_low": 6.0}, "cov_low must be below cov_high"),
        (KLCov, {"cov_kl_coef": -1.0}, "cov_kl_coef must be at least 0"),
        (KLCov, {"cov_seed": -1}, "cov_seed"),
    ],
)
def test_ranges(method, options, said):
    with pytest.raises(ValueError, match=said):
        method.Config(**options)

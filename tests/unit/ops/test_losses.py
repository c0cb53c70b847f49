"""The clipped surrogate against a plain scalar reference, its gradient and its clip fractions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.ops import clip_fractions, clipped_surrogate


def plain(
    logp: float, old: float, adv: float, low: float, high: float, dual: float | None
) -> float:
    ratio = math.exp(logp - old)
    loss = -min(ratio * adv, min(max(ratio, 1 - low), 1 + high) * adv)
    return min(loss, -dual * adv) if dual is not None and adv < 0 else loss


finite = st.floats(-4, 4)


@settings(max_examples=150, deadline=None)
@given(
    logp=finite,
    old=finite,
    adv=finite,
    low=st.floats(0.01, 0.9),
    high=st.one_of(st.none(), st.floats(0.01, 3.0)),
    dual=st.one_of(st.none(), st.floats(1.5, 10)),
)
def test_equals_scalar_reference(logp, old, adv, low, high, dual):
    args = [torch.tensor([[x]], dtype=torch.float64) for x in (logp, old, adv)]
    got = clipped_surrogate(*args, low, high, dual).item()
    assert got == pytest.approx(plain(logp, old, adv, low, low if high is None else high, dual))


def test_gradient_is_minus_advantage_times_ratio_inside_and_zero_where_clipped():
    logp = torch.tensor([[0.0, 0.1, 0.5, -0.5, 0.5, -0.5, 1.5]], dtype=torch.float64)
    logp.requires_grad_()
    adv = torch.tensor([[1.0, -2.0, 1.0, 1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    old = torch.zeros_like(adv)
    clipped_surrogate(logp, old, adv, 0.2, 0.28, 3.0).sum().backward()
    expected = -adv * logp.exp()
    closed = torch.tensor([[False, False, True, False, False, True, True]])
    expected = torch.where(closed, 0.0, expected)
    torch.testing.assert_close(logp.grad, expected.detach())
    clipped, capped = clip_fractions(logp, old, adv, 0.2, 0.28, 3.0)
    assert clipped.tolist() == [[0, 0, 1, 0, 0, 1, 0]]
    assert capped.tolist() == [[0, 0, 0, 0, 0, 0, 1]]
    assert clip_fractions(logp, old, adv, 0.2)[1].sum() == 0


def test_on_policy_gradient_is_the_policy_gradient():
    logp = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    adv = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.0, -3.0]])
    clipped_surrogate(logp, logp.detach(), adv, 0.2).sum().backward()
    torch.testing.assert_close(logp.grad, -adv)

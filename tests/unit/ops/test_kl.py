"""KL estimators: values and gradients by exact enumeration of a small distribution."""

from __future__ import annotations

import pytest
import torch

from rlframe.ops import kl_loss, kl_value

LOGITS = torch.tensor([0.3, -1.2, 0.8, 2.0, -0.4], dtype=torch.float64)
REF = torch.tensor([0.1, 0.5, -0.7, 1.0, 0.2], dtype=torch.float64).log_softmax(0)


def exact(direction: str) -> tuple[float, torch.Tensor]:
    """KL and its gradient with respect to the logits, summed over every outcome."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    if direction == "pi||ref":
        kl = (logp.exp() * (logp - REF)).sum()
    else:
        kl = (REF.exp() * (REF - logp)).sum()
    kl.backward()
    return kl.item(), logits.grad


def expected(estimator: str) -> tuple[float, torch.Tensor]:
    """Expectation over samples from pi of the loss and of its gradient: samples do not move."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    loss = (logp.exp().detach() * kl_loss(logp, REF, estimator)).sum()
    loss.backward()
    return loss.item(), logits.grad


@pytest.mark.parametrize("estimator", ["k1", "k3", "k3+"])
def test_value_is_unbiased(estimator):
    assert expected(estimator)[0] == pytest.approx(exact("pi||ref")[0], abs=1e-12)


def test_k2_value_is_not_the_kl():
    assert expected("k2")[0] != pytest.approx(exact("pi||ref")[0], abs=1e-3)


@pytest.mark.parametrize(
    ("estimator", "direction"), [("k2", "pi||ref"), ("k3+", "pi||ref"), ("k3", "ref||pi")]
)
def test_gradient_is_that_of_a_kl(estimator, direction):
    torch.testing.assert_close(expected(estimator)[1], exact(direction)[1], rtol=1e-10, atol=1e-12)


def test_the_two_directions_differ_here():
    assert (exact("pi||ref")[1] - exact("ref||pi")[1]).abs().max() > 0.05


def test_k1_gradient_is_zero_in_expectation():
    assert expected("k1")[1].abs().max() < 1e-12


def test_moving_away_from_the_reference_is_penalised():
    """Finite difference of the exact KL along the loss's negative gradient: it falls."""
    for estimator in ("k2", "k3", "k3+"):
        gradient = expected(estimator)[1]
        moved = (LOGITS - 1e-4 * gradient).log_softmax(0)
        before = LOGITS.log_softmax(0)
        kl_before = (before.exp() * (before - REF)).sum()
        assert (moved.exp() * (moved - REF)).sum() < kl_before


def test_values_by_hand_and_float32_accuracy_near_zero():
    logp, ref = torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -1.0 + 1e-4])
    k1 = (logp - ref).double()
    torch.testing.assert_close(kl_value(logp, ref, "k1").double(), k1)
    torch.testing.assert_close(kl_value(logp, ref, "k2").double(), k1**2 / 2)
    exact_k3 = torch.expm1(-k1) + k1
    assert kl_value(logp, ref, "k3").double()[0] == pytest.approx(float(exact_k3[0]), rel=1e-6)
    assert kl_value(logp, ref, "k3+").equal(kl_value(logp, ref, "k3"))
    assert kl_value(logp, ref, "k3").min() >= 0


def test_no_gradient_flows_into_the_reference_or_out_of_a_value():
    logp, ref = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
    kl_loss(logp, ref, "k3+").sum().backward()
    assert ref.grad is None
    assert not kl_value(logp, ref).requires_grad


def test_unknown_estimator():
    for function in (kl_loss, kl_value):
        with pytest.raises(ValueError, match="k1, k2, k3 or k3\\+"):
            function(torch.zeros(1), torch.zeros(1), "k4")

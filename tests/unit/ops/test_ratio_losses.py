"""The losses of GSPO, GMPO, CISPO, SAPO, DPPO and TOPR: by hand, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from rlframe import ops

OLD = torch.log(torch.tensor([[0.5, 0.2, 0.4], [0.3, 0.6, 0.9]], dtype=torch.float64))
NEW = torch.log(torch.tensor([[0.6, 0.1, 0.4], [0.5, 0.6, 0.1]], dtype=torch.float64))
MASK = torch.tensor([[True, True, False], [True, True, True]])
GOOD = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]], dtype=torch.float64)


def gradient(loss_of, logp=NEW, mask=MASK):
    leaf = logp.clone().requires_grad_()
    torch.where(mask, loss_of(leaf), 0.0).sum().backward()
    return leaf.grad


def test_the_sequence_ratio_is_a_mean_over_counted_tokens():
    got = ops.sequence_log_ratio(NEW, OLD, MASK)
    first = (math.log(0.6 / 0.5) + math.log(0.1 / 0.2)) / 2
    assert got[0, 0].item() == pytest.approx(first)
    longer = [x.repeat(1, 4) for x in (NEW, OLD, MASK)]
    torch.testing.assert_close(ops.sequence_log_ratio(*longer), got)
    assert ops.sequence_log_ratio(NEW, OLD, torch.zeros_like(MASK)).tolist() == [[0.0], [0.0]]


def test_a_masked_slot_reaches_no_sequence_loss():
    dirty = torch.where(MASK, NEW, math.nan)
    for name in ("sequence_clipped", "geometric_clipped", "tapered"):
        function = getattr(ops, name)
        more = (0.5,) if name == "sequence_clipped" else ()
        clean, spoiled = (function(x, OLD, GOOD, MASK, *more) for x in (NEW, dirty))
        if name == "sequence_clipped":
            clean, spoiled = clean[0], spoiled[0]
        assert torch.equal(clean[MASK], spoiled[MASK])


def test_gspo_gradient_spreads_the_ratio_evenly():
    """d loss_i / d log pi_t = -s A / |o| for each token where the response is not clipped."""

    def mean_loss(leaf):
        loss, _ = ops.sequence_clipped(leaf, OLD, GOOD, MASK, 0.9, 5.0)
        return loss / MASK.sum(1, keepdim=True)

    ratio = ops.sequence_log_ratio(NEW, OLD, MASK).exp()
    wanted = torch.where(MASK, -ratio * GOOD / MASK.sum(1, keepdim=True), 0.0)
    torch.testing.assert_close(gradient(mean_loss), wanted)


def test_gspo_clips_whole_responses():
    loss, clipped = ops.sequence_clipped(NEW, OLD, GOOD, MASK, 3e-4, 4e-4)
    ratio = ops.sequence_log_ratio(NEW, OLD, MASK).exp()
    assert ratio[0] < 1 - 3e-4
    assert ratio[1] < 1 - 3e-4
    assert clipped.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert loss[1, 0].item() == pytest.approx(2 * (1 - 3e-4))


def test_gmpo_holds_each_side_by_the_sign_of_the_advantage():
    gap = NEW - OLD
    got = ops.geometric_clipped(NEW, OLD, GOOD, MASK, 0.4, 0.4)
    first = math.exp((min(gap[0, 0].item(), 0.4) + min(gap[0, 1].item(), 0.4)) / 2)
    second = math.exp(sum(max(g, -0.4) for g in gap[1].tolist()) / 3)
    assert got[0, 0].item() == pytest.approx(-first)
    assert got[1, 0].item() == pytest.approx(2 * second)
    assert ops.geometric_outside(NEW, OLD, GOOD).tolist() == [[0, 0, 0], [0, 0, 1]]


def test_cispo_keeps_every_gradient():
    far = OLD + torch.tensor([[3.0, -3.0, 0.0], [3.0, -3.0, 0.0]], dtype=torch.float64)
    everywhere = torch.ones_like(MASK)
    got = gradient(lambda p: ops.weight_clipped(p, OLD, GOOD, 0.28), far, everywhere)
    weight = (far - OLD).exp().clamp(max=1.28)
    torch.testing.assert_close(got, -weight * GOOD)
    both = ops.weight_clipped(far, OLD, GOOD, 0.28, 0.2)
    assert both[0, 1].item() == pytest.approx(-0.8 * far[0, 1].item())


def test_sapo_weight_is_one_at_the_old_policy_and_fades():
    everywhere = torch.ones_like(MASK)
    at = gradient(lambda p: ops.soft_gated(p, OLD, GOOD), OLD, everywhere)
    torch.testing.assert_close(at, -GOOD)
    for shift in (2.0, -2.0):
        away = gradient(lambda p: ops.soft_gated(p, OLD, GOOD), OLD + shift, everywhere)
        assert (away.abs() < GOOD.abs()).all()
        assert (away.sign() == -GOOD.sign()).all()


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_stops_only_what_moves_further_out(kind):
    outside = ops.divergence_outside(NEW, OLD, GOOD, 0.05, kind)
    # A > 0: only 0.5 -> 0.6 has risen; A < 0: only 0.9 -> 0.1 has fallen.
    expected = {"tv": [[True, False, False], [False, False, True]]}
    expected["kl"] = [[False, False, False], [False, False, True]]
    assert outside.tolist() == expected[kind]
    got = gradient(lambda p: ops.divergence_masked(p, OLD, GOOD, 0.05, kind))
    assert (got[outside & MASK] == 0).all()
    assert (got[~outside & MASK] != 0).all()


def test_dppo_binary_kl_is_that_of_two_coins():
    p, q = 0.1, 0.9
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    args = (torch.log(torch.tensor([[p]])), torch.log(torch.tensor([[q]])), torch.tensor([[-1.0]]))
    assert ops.divergence_outside(*args, kl * 0.999, "kl").item()
    assert not ops.divergence_outside(*args, kl * 1.001, "kl").item()
    certain = torch.zeros(1, 1)
    assert not ops.divergence_outside(certain, certain, torch.ones(1, 1), 0.05, "kl").item()
    with pytest.raises(ValueError, match="take tv or kl"):
        ops.divergence_outside(*args, 0.1, "js")


def test_dppo_weight_is_capped():
    old, new = torch.log(torch.tensor([[0.001]])), torch.log(torch.tensor([[0.1]]))
    loss = ops.divergence_masked(new, old, torch.ones(1, 1), 0.5, "tv", 20.0)
    assert loss.item() == pytest.approx(-20 * math.log(0.1))


def test_topr_tapers_bad_responses_alone():
    got = gradient(lambda p: ops.tapered(p, OLD, GOOD, MASK))
    assert got[0].tolist() == [-1.0, -1.0, 0.0]
    ratio = math.prod(((NEW - OLD).exp())[1].tolist())
    assert ratio < 1
    assert got[1].tolist() == pytest.approx([2 * ratio] * 3)
    risen = gradient(lambda p: ops.tapered(p, NEW, GOOD, MASK), OLD)
    assert risen[1].tolist() == pytest.approx([2.0] * 3)


def test_ratios_never_overflow():
    new, old = torch.tensor([[0.0, -500.0]]), torch.tensor([[-500.0, 0.0]])
    assert ops.log_ratio(new, old).tolist() == [[20.0, -20.0]]
    assert torch.isfinite(ops.log_ratio(new, old).exp()).all()

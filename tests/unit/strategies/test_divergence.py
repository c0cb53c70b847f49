"""Divergence and gradient against whole logits and autograd in float64."""

from __future__ import annotations

import pytest
import torch

from rlframe.algorithm import Divergence
from rlframe_strategies import head as head_module
from rlframe_strategies.divergence import Head, token_divergence
from rlframe_strategies.head import LogitMap

N, H, G, V = 23, 6, 5, 17


def plain(student, teacher, form):
    """Definitions, no chunk, no trick."""
    p, q = student.softmax(1), teacher.softmax(1)
    if form.top_k and form.top_k < V:
        rows = []
        for p_row, q_row in zip(p, q, strict=True):
            best = q_row.argsort(descending=True)[: form.top_k]
            rows.append(
                [torch.cat([r[best], 1 - r[best].sum(0, keepdim=True)]) for r in (p_row, q_row)]
            )
        p, q = (torch.stack([row[i] for row in rows]) for i in (0, 1))

    def kl(a, b):
        return (a * (a / b).log()).sum(1)

    if form.kind == "reverse-kl":
        return kl(p, q)
    if form.kind == "forward-kl":
        return kl(q, p)
    m = form.mix * q + (1 - form.mix) * p
    return form.mix * kl(q, m) + (1 - form.mix) * kl(p, m)


def random(*shape, seed, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def logits(hidden, head):
    out = (hidden @ head.weight.T + head.bias) * head.logits.scale
    if head.logits.softcap:
        out = head.logits.softcap * torch.tanh(out / head.logits.softcap)
    return out / head.logits.temperature


FORMS = [
    Divergence("teacher", kind, top_k, 0.3)
    for kind in ("reverse-kl", "forward-kl", "jsd")
    for top_k in (0, 1, 4, V)
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.kind}-{f.top_k}")
@pytest.mark.parametrize("own", [LogitMap(), LogitMap(0.5, 3.0, 0.7)], ids=["plain", "capped"])
def test_values_and_gradients_are_those_of_whole_logits(form, own, monkeypatch):
    monkeypatch.setattr(head_module, "_MIN_CHUNK", 4)
    monkeypatch.setattr(head_module, "_CHUNK_ELEMENTS", 4 * V)
    hidden, weight, bias = (
        random(*shape, seed=seed, grad=True) for seed, shape in enumerate([(N, H), (V, H), (V,)])
    )
    other = random(N, G, seed=5)
    other_head = Head(random(V, G, seed=6), random(V, seed=7), LogitMap(1.0, 0.0, 0.7))
    upstream = random(N, seed=8)

    wanted = plain(logits(hidden, Head(weight, bias, own)), logits(other, other_head), form)
    expected = torch.autograd.grad((wanted * upstream).sum(), (hidden, weight, bias))
    got = token_divergence((hidden, Head(weight, bias, own)), (other, other_head), form)
    gradients = torch.autograd.grad((got * upstream.float()).sum(), (hidden, weight, bias))

    torch.testing.assert_close(got.double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    for mine, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


def test_no_chunk_holds_more_than_its_share(monkeypatch):
    """(N, V) never exists whole, forward or backward."""
    monkeypatch.setattr(head_module, "_MIN_CHUNK", 4)
    monkeypatch.setattr(head_module, "_CHUNK_ELEMENTS", 4 * V)
    seen = []
    true_logits = head_module.make_logits

    def watched(hidden, *rest):
        seen.append(len(hidden))
        return true_logits(hidden, *rest)

    monkeypatch.setattr("rlframe_strategies.divergence.make_logits", watched)
    hidden, weight = random(N, H, seed=0, grad=True), random(V, H, seed=1, grad=True)
    teacher = (random(N, G, seed=2), Head(random(V, G, seed=3), None, LogitMap()))
    out = token_divergence((hidden, Head(weight, None, LogitMap())), teacher, FORMS[0])
    out.sum().backward()
    assert max(seen) <= 4
    assert sum(seen) == 4 * N


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.kind}-{f.top_k}")
def test_equal_models_have_none_and_extreme_ones_a_finite_gradient(form):
    weight = random(V, H, seed=1).float()
    head = Head(weight, None, LogitMap())
    hidden = random(N, H, seed=0).float().requires_grad_()
    out = token_divergence((hidden, head), (hidden.detach(), head), form)
    out.sum().backward()
    assert out.abs().max() < 1e-5
    assert hidden.grad.abs().max() < 1e-5

    far = (hidden.detach() * 300).requires_grad_()
    out = token_divergence((far, head), (-far.detach(), head), form)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert (out >= -1e-5).all()
    assert torch.isfinite(far.grad).all()


def test_more_outcomes_tell_more():
    """Top-k is a lower bound that rises to the whole divergence."""
    student = (random(N, H, seed=0), Head(random(V, H, seed=1), None, LogitMap()))
    teacher = (random(N, G, seed=2), Head(random(V, G, seed=3), None, LogitMap()))
    values = [
        token_divergence(student, teacher, Divergence("teacher", "reverse-kl", k)).mean()
        for k in (1, 2, 4, 8, V)
    ]
    assert all(a <= b + 1e-6 for a, b in zip(values, values[1:], strict=False))
    whole = token_divergence(student, teacher, Divergence("teacher")).mean()
    assert values[-1] == pytest.approx(float(whole))

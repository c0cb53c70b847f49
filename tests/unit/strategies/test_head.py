from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlframe_strategies import head
from rlframe_strategies.head import LogitMap, token_logprobs

N, H, V = 11, 6, 13


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, logits: LogitMap
) -> tuple[Tensor, Tensor]:
    out = hidden @ weight.T
    if bias is not None:
        out = out + bias
    out = out * logits.scale
    if logits.softcap:
        out = logits.softcap * torch.tanh(out / logits.softcap)
    log_p = (out / logits.temperature).log_softmax(-1)
    return log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=g).to(dtype) for shape in ((N, H), (V, H), (V,))]
    return made[0], made[1], made[2], torch.randint(0, V, (N,), generator=g)


def leaves(*tensors: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return [t.detach().to(dtype).requires_grad_() for t in tensors]


MAPS = [
    LogitMap(),
    LogitMap(temperature=0.6),
    LogitMap(scale=0.25, temperature=1.7),
    LogitMap(softcap=2.0, temperature=0.6),
    LogitMap(scale=3.0, softcap=1.5),
]


@pytest.mark.parametrize("chunk", [1, 4, N, 100])
@pytest.mark.parametrize("logits", MAPS, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_whole_logits_in_float64(
    monkeypatch: pytest.MonkeyPatch, chunk: int, logits: LogitMap, with_bias: bool
) -> None:
    monkeypatch.setattr(head, "_MIN_CHUNK", 1)
    monkeypatch.setattr(head, "_MAX_CHUNK", chunk)
    hidden, weight, bias, labels = inputs()
    mine = leaves(hidden, weight, bias, dtype=torch.float32)
    theirs = leaves(hidden, weight, bias, dtype=torch.float64)
    got = token_logprobs(
        mine[0], mine[1], mine[2] if with_bias else None, labels, logits, entropy=True
    )
    expected = plain(theirs[0], theirs[1], theirs[2] if with_bias else None, labels, logits)
    up = torch.randn(2, N, generator=torch.Generator().manual_seed(1))
    assert got[1] is not None
    ((got[0] * up[0]).sum() + (got[1] * up[1]).sum()).backward()
    ((expected[0] * up[0]).sum() + (expected[1] * up[1]).sum()).backward()
    torch.testing.assert_close(got[0].double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1].double(), expected[1], rtol=1e-5, atol=1e-5)
    for ours, reference in list(zip(mine, theirs, strict=True))[: 2 + with_bias]:
        assert ours.grad is not None
        assert reference.grad is not None
        torch.testing.assert_close(ours.grad.double(), reference.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_through_one_result_only(which: int) -> None:
    hidden, weight, bias, labels = inputs()
    mine = leaves(hidden, weight, bias, dtype=torch.float32)
    theirs = leaves(hidden, weight, bias, dtype=torch.float64)
    got = token_logprobs(*mine, labels, LogitMap(temperature=0.8), entropy=True)[which]
    assert got is not None
    got.square().sum().backward()
    plain(*theirs, labels, LogitMap(temperature=0.8))[which].square().sum().backward()
    for ours, reference in zip(mine, theirs, strict=True):
        assert ours.grad is not None
        assert reference.grad is not None
        torch.testing.assert_close(ours.grad.double(), reference.grad, rtol=1e-4, atol=1e-5)


def test_frozen_weight_gets_no_gradient_and_hidden_does() -> None:
    hidden, weight, bias, labels = inputs()
    hidden.requires_grad_()
    token_logprobs(hidden, weight, bias, labels, LogitMap(), entropy=False)[0].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_no_positions() -> None:
    hidden, weight, bias, labels = inputs()
    weight.requires_grad_()
    out, entropy = token_logprobs(hidden[:0], weight, bias, labels[:0], LogitMap(), entropy=True)
    assert entropy is not None
    (out.sum() + entropy.sum()).backward()
    assert out.shape == entropy.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_large_logits_stay_finite() -> None:
    hidden, weight, bias, labels = inputs()
    out, entropy = token_logprobs(
        hidden * 1e4, weight, bias, labels, LogitMap(temperature=0.01), entropy=True
    )
    assert entropy is not None
    assert out.isfinite().all()
    assert entropy.isfinite().all()
    assert (entropy > -1e-3).all()


def test_low_precision_returns_float32_and_sums_the_weight_gradient_in_float32() -> None:
    hidden, weight, _, labels = inputs(torch.bfloat16)
    mine = leaves(hidden, weight, dtype=torch.bfloat16)
    out, _ = token_logprobs(*mine, None, labels, LogitMap(), entropy=False)
    out.sum().backward()
    assert out.dtype == torch.float32
    assert mine[1].grad is not None
    assert mine[1].grad.dtype == torch.bfloat16
    theirs = leaves(hidden, weight, dtype=torch.float64)
    plain(*theirs, None, labels, LogitMap())[0].sum().backward()
    assert theirs[1].grad is not None
    torch.testing.assert_close(mine[1].grad.double(), theirs[1].grad, rtol=0.05, atol=0.1)


def test_logits_of_all_positions_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_MIN_CHUNK", 1)
    monkeypatch.setattr(head, "_MAX_CHUNK", 3)
    hidden, weight, bias, labels = inputs()
    weight.requires_grad_()
    biggest = 0
    make = torch.Tensor.__matmul__

    def watched(a: Tensor, b: Tensor) -> Tensor:
        nonlocal biggest
        out = make(a, b)
        biggest = max(biggest, out.numel() if out.shape[-1] == V else 0)
        return out

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    out, _ = token_logprobs(hidden, weight, bias, labels, LogitMap(), entropy=True)
    out.sum().backward()
    assert 0 < biggest <= 3 * V

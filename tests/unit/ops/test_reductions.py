"""Token weights: the issue's figures, and a plain reference over random masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.algorithm import REDUCTIONS
from rlframe.ops import loss_weights

MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
VALUES = torch.tensor([[1.0] * 4, [2.0, 9.0, 9.0, 9.0]])


def plain(
    values: list[list[float]], mask: list[list[bool]], reduction: str, constant: int
) -> float:
    rows = [
        [v for v, m in zip(vs, ms, strict=True) if m] for vs, ms in zip(values, mask, strict=True)
    ]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    return {
        "token-mean": sum(map(sum, rows)) / sum(map(len, rows)),
        "seq-mean-token-mean": sum(sum(r) / len(r) for r in rows) / len(rows),
        "seq-mean-token-sum": sum(map(sum, rows)) / len(rows),
        "fixed-length": sum(map(sum, rows)) / (len(rows) * constant),
    }[reduction]


@pytest.mark.parametrize(
    ("reduction", "loss"),
    [
        ("token-mean", 1.2),
        ("seq-mean-token-mean", 1.5),
        ("seq-mean-token-sum", 3.0),
        ("fixed-length", 0.75),
    ],
)
def test_known_figures(reduction, loss):
    weights = loss_weights(MASK, reduction, tokens=5, rows=2, fixed_length=4)
    assert float((VALUES * weights).sum()) == pytest.approx(loss, abs=1e-12)
    assert (weights[~MASK] == 0).all()


@settings(max_examples=50, deadline=None)
@given(
    mask=st.integers(0, 5).flatmap(
        lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), max_size=6)
    ),
    reduction=st.sampled_from(REDUCTIONS),
    seed=st.integers(0, 100),
)
def test_equals_plain_reference_for_any_mask(mask, reduction, seed):
    width = len(mask[0]) if mask else 0
    mask_BR = torch.tensor(mask, dtype=torch.bool).reshape(len(mask), width)
    generator = torch.Generator().manual_seed(seed)
    values_BR = torch.randn(len(mask), width, generator=generator, dtype=torch.float64)
    tokens, rows = int(mask_BR.sum()), int(mask_BR.any(1).sum())
    weights = loss_weights(mask_BR, reduction, tokens=tokens, rows=rows, fixed_length=7)
    got = float((values_BR * weights).sum())
    assert got == pytest.approx(plain(values_BR.tolist(), mask, reduction, 7), abs=1e-9)


def test_errors():
    with pytest.raises(ValueError, match="constant above 0"):
        loss_weights(MASK, "fixed-length", tokens=5, rows=2)
    with pytest.raises(ValueError, match="unknown reduction 'mean'"):
        loss_weights(MASK, "mean", tokens=5, rows=2)

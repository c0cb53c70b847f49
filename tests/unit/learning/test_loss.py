"""The core's reduction: every split gives one loss, one gradient, one set of figures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlframe import Algorithm, Term, TrainingError
from rlframe.algorithm import REDUCTIONS, Output
from rlframe.batching.columns import COLUMNS, Column, make_schema
from rlframe.learning.loss import (
    add_loss_mask,
    count_denominators,
    fill_masked,
    loss_share,
    nonfinite,
    reduce_terms,
)

MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()


def alone(tensor):
    return tensor


def counted(mask=MASK, **other):
    columns = {"loss_mask": mask, **other}
    return columns, count_denominators(columns, tuple(columns), alone, rows=len(mask))


def plain(values, mask, reduction, constant):
    """The reduced loss in double precision, straight from its definition."""
    rows = [v[m].tolist() for v, m in zip(values.double(), mask, strict=True) if m.any()]
    if not rows:
        return 0.0
    return {
        "token-mean": math.fsum(map(math.fsum, rows)) / sum(map(len, rows)),
        "seq-mean-token-mean": math.fsum(math.fsum(r) / len(r) for r in rows) / len(rows),
        "seq-mean-token-sum": math.fsum(map(math.fsum, rows)) / len(rows),
        "fixed-length": math.fsum(map(math.fsum, rows)) / (len(rows) * constant),
    }[reduction]


@pytest.mark.parametrize(
    ("reduction", "loss"),
    list(zip(REDUCTIONS, (1.2, 1.5, 3.0, 0.75), strict=True)),
)
def test_known_figures(reduction, loss):
    columns, denominators = counted()
    values = torch.tensor([[1.0] * 4, [2.0, 5.0, math.nan, math.inf]], requires_grad=True)
    terms = {"x": Term(values, reduction=reduction, coef=2.0)}
    share, figures = reduce_terms(terms, columns, denominators, 4)
    assert share.item() == pytest.approx(2 * loss)
    assert figures["x"].item() == pytest.approx(loss)
    assert figures["x"].dtype == torch.float64
    share.backward()
    assert torch.isfinite(values.grad).all()
    assert (values.grad[~MASK] == 0).all()
    assert (values.grad[MASK] > 0).all()


def test_the_mean_of_micro_batch_means_is_not_the_loss():
    """Token losses 0.5 x 100 and 0.3 x 900 are 0.32, not 0.4."""
    mask = torch.zeros(2, 900, dtype=torch.bool)
    mask[0, :100] = True
    mask[1] = True
    values = torch.tensor([[0.5], [0.3]]).expand(2, 900)
    _, denominators = counted(mask)
    total = 0.0
    for row in range(2):
        micro = {"loss_mask": mask[row : row + 1]}
        share, _ = reduce_terms({"x": Term(values[row : row + 1])}, micro, denominators)
        total += share.item()
    assert total == pytest.approx(0.32)


class Everything(Algorithm):
    """Terms of every form: per token under two masks, per row with and without mask."""

    masks = ("loss_mask", "value_mask")

    def loss(self, role, out, batch):
        reduction = self.config.reduction
        row = (out.logprobs * batch["advantages"]).sum(1)
        return {
            "token": Term(-out.logprobs * batch["advantages"], reduction=reduction, coef=0.7),
            "value": Term(out.values**2, "value_mask", reduction, coef=0.5),
            "row": Term(row, reduction="mean", coef=0.3),
            "all": Term(row.sin(), mask=None, reduction="mean", coef=-0.2),
            "entropy": Term(out.entropy, coef=0.0),
        }

    def metrics(self, role, out, batch):
        return {"share": Term(batch["advantages"] > 0)}


def case(seed: int, rows: int, width: int):
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    mask = torch.rand(rows, width, generator=generator) < 0.6
    value_mask = torch.rand(rows, width, generator=generator) < 0.5
    columns = {"loss_mask": mask, "value_mask": value_mask, "advantages": normal()}
    leaves = {"logprobs": normal(), "entropy": normal(), "values": normal()}
    return columns, leaves, mask | value_mask


def run(algorithm, columns, leaves, ranks, width_cut=False):
    """Loss, figures and gradients with rows dealt to micro-batches: ``ranks[r][i]`` are rows."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    per_rank = [torch.tensor([i for m in micros for i in m], dtype=torch.long) for micros in ranks]
    vectors = []
    for rows in per_rank:
        masks = {n: columns[n][rows] for n in algorithm.masks}
        count_denominators(
            masks, algorithm.masks, lambda t: (vectors.append(t), t)[1], rows=len(rows)
        )
    total = torch.stack(vectors).sum(0)
    loss, figures = 0.0, {}
    for rows, micros in zip(per_rank, ranks, strict=True):
        masks = {n: columns[n][rows] for n in algorithm.masks}
        counts = count_denominators(masks, algorithm.masks, lambda _: total, rows=len(rows))
        for micro in micros:
            index = torch.tensor(micro, dtype=torch.long)
            data = {name: column[index] for name, column in columns.items()}
            out = {name: leaf[index] for name, leaf in leaves.items()}
            if width_cut:
                used = torch.stack([data[n] for n in algorithm.masks]).any(0).any(0).nonzero()
                width = int(used.max()) + 1 if len(used) else 0
                data = {name: column[:, :width] for name, column in data.items()}
                out = {name: leaf[:, :width] for name, leaf in out.items()}
            batch = TensorDict(data, batch_size=[len(index)])
            share, more = loss_share(
                algorithm, "policy", Output(**out), batch, counts, fixed_length=5
            )
            share.backward()
            loss += share.item()
            for name, value in more.items():
                figures[name] = figures.get(name, 0.0) + value.item()
    return loss, figures, {name: leaf.grad for name, leaf in leaves.items()}


def same(left, right):
    assert left[0] == pytest.approx(right[0], rel=1e-9, abs=1e-12)
    assert left[1] == pytest.approx(right[1], rel=1e-9, abs=1e-12)
    for name in left[2]:
        a = left[2][name] if left[2][name] is not None else torch.zeros(())
        b = right[2][name] if right[2][name] is not None else torch.zeros(())
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000), reduction=st.sampled_from(REDUCTIONS))
def test_any_split_order_ranks_and_width_give_the_same(data, seed, reduction):
    rows, width = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 6))
    algorithm = Everything(Algorithm.Config(reduction=reduction))
    columns, leaves, _ = case(seed, rows, width)
    whole = run(algorithm, columns, leaves, [[list(range(rows))]])
    order = data.draw(st.permutations(range(rows)))
    homes = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=rows, max_size=rows)
    )
    ranks = [
        [
            [i for i, home in zip(order, homes, strict=True) if home == (rank, micro)]
            for micro in range(3)
        ]
        for rank in range(3)
    ]
    same(run(algorithm, columns, leaves, ranks, width_cut=True), whole)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), reduction=st.sampled_from(REDUCTIONS))
def test_float64_reference(seed, reduction):
    algorithm = Everything(Algorithm.Config(reduction=reduction))
    columns, leaves, _ = case(seed, 5, 4)
    loss, figures, _ = run(algorithm, columns, leaves, [[[0, 1, 2, 3, 4]]])
    union = columns["loss_mask"] | columns["value_mask"]
    logprobs = torch.where(union, leaves["logprobs"], 0.0)
    advantages = torch.where(union, columns["advantages"], 0.0)
    row = (logprobs * advantages).sum(1)
    some = columns["loss_mask"].any(1)
    wanted = {
        "token": plain(-logprobs * advantages, columns["loss_mask"], reduction, 5),
        "value": plain(leaves["values"] ** 2, columns["value_mask"], reduction, 5),
        "row": float(row[some].mean()) if some.any() else 0.0,
        "all": float(row.sin().mean()),
        "entropy": plain(leaves["entropy"], columns["loss_mask"], "token-mean", 5),
        "share": plain((advantages > 0).double(), columns["loss_mask"], "token-mean", 5),
    }
    assert figures == pytest.approx(wanted, abs=1e-9)
    coefs = {"token": 0.7, "value": 0.5, "row": 0.3, "all": -0.2}
    assert loss == pytest.approx(sum(c * wanted[n] for n, c in coefs.items()), abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_in_a_masked_slot_reaches_value_or_gradient(bad):
    algorithm = Everything()
    columns, leaves, union = case(3, 6, 5)
    clean = run(algorithm, columns, leaves, [[[0, 1, 2], [3, 4, 5]]])
    dirty_columns = columns | {"advantages": columns["advantages"].masked_fill(~union, bad)}
    dirty = {name: leaf.masked_fill(~union, bad) for name, leaf in leaves.items()}
    got = run(algorithm, dirty_columns, dirty, [[[0, 1, 2], [3, 4, 5]]])
    same(got, clean)
    assert all(torch.isfinite(g).all() for g in got[2].values() if g is not None)


def test_a_non_finite_counted_value_is_named_and_metric_terms_do_not_poison_the_loss():
    columns, denominators = counted()
    good, bad = torch.ones(2, 4), torch.ones(2, 4)
    bad[0, 1] = math.nan
    terms = {"pg_loss": Term(good), "kl_loss": Term(bad, coef=0.1), "entropy": Term(bad, coef=0.0)}
    share, figures = reduce_terms(terms, columns, denominators)
    assert not math.isfinite(share.item())
    assert nonfinite(figures) == ["kl_loss", "entropy"]
    share, _ = reduce_terms(
        {"pg_loss": Term(good), "entropy": Term(bad, coef=-0.0)}, columns, denominators
    )
    assert share.item() == pytest.approx(1.0)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "mean"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 0), (2, 0)])
def test_all_masked_is_zero_with_zero_gradient(reduction, shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    columns, denominators = counted(mask)
    leaf = torch.full(shape, math.nan, requires_grad=True)
    values = leaf.sum(1) if reduction == "mean" else leaf
    share, figures = reduce_terms(
        {"x": Term(values, reduction=reduction)}, columns, denominators, 4
    )
    share.backward()
    assert share.item() == 0
    assert figures["x"].item() == 0
    assert leaf.grad is not None
    if reduction != "mean":
        assert (leaf.grad == 0).all()


def test_atoms_have_their_own_count():
    mask = torch.ones(4, 2, dtype=torch.bool)
    counts = count_denominators({"loss_mask": mask}, ("loss_mask",), alone, rows=4, atoms=2)
    total = 0.0
    for value in (1.0, 4.0):
        micro = {"loss_mask": mask[:2]}
        term = Term(torch.tensor([value]), mask=None, reduction="mean", per="atom")
        total += reduce_terms({"dpo": term}, micro, counts)[0].item()
    assert total == pytest.approx(2.5)


def test_half_precision_values_are_summed_in_float32():
    mask = torch.ones(1, 4096, dtype=torch.bool)
    columns, denominators = counted(mask)
    values = torch.full((1, 4096), 1.0, dtype=torch.bfloat16, requires_grad=True)
    share, figures = reduce_terms({"x": Term(values)}, columns, denominators)
    assert share.dtype == torch.float32
    assert share.item() == pytest.approx(1.0, rel=1e-6)
    assert figures["x"].item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (Term(torch.ones(2, 4), mask="los_mask"), "'los_mask' is not in Algorithm.masks"),
        (Term(torch.ones(2, 4), mask="other"), "Did you mean|unknown mask column 'other'"),
        (Term(torch.ones(2, 3)), r"shape \(2, 3\)"),
        (Term(torch.ones(())), "without reducing"),
        (Term(torch.ones(2, 4), reduction="mean"), "per-token values take one of token-mean"),
        (Term(torch.ones(2)), "takes reduction='mean', not 'token-mean'"),
        (Term(torch.ones(2), mask=None), "takes reduction='mean'"),
        (Term(torch.ones(2, 4), mask=None, reduction="mean"), "need a mask"),
        (Term(torch.ones(1), mask=None, reduction="mean"), "1 values for 2 rows"),
        (Term(torch.ones(2, 4), reduction="fixed-length"), "longest response"),
    ],
)
def test_errors_name_the_term(term, said):
    columns, denominators = counted(other=MASK)
    del columns["other"]
    with pytest.raises(TrainingError, match=said) as caught:
        reduce_terms({"my_loss": term}, columns, denominators)
    assert "my_loss" in str(caught.value)


def test_mask_columns_are_checked():
    with pytest.raises(TrainingError, match="unknown mask column 'value_mask'"):
        count_denominators({"loss_mask": MASK}, ("loss_mask", "value_mask"), alone, rows=2)
    with pytest.raises(TrainingError, match="bool"):
        count_denominators({"loss_mask": MASK.float()}, ("loss_mask",), alone, rows=2)


def test_a_figure_may_not_hide_a_term():
    class Twice(Everything):
        def metrics(self, role, out, batch):
            return {"token": Term(out.logprobs)}

    columns, leaves, _ = case(0, 2, 3)
    with pytest.raises(TrainingError, match="'token' is both"):
        run(Twice(), columns, leaves, [[[0, 1]]])


def test_fill_touches_only_float_columns_over_response_tokens():
    schema = make_schema([Column("wide", "BRK", "float32", "test", "per token, K numbers")])
    parts = torch.full((2, 4), math.nan)
    micro = TensorDict(
        {
            "loss_mask": MASK,
            "response_ids": torch.full((2, 4), 7),
            "advantages": torch.full((2, 4), math.nan),
            "made_by_minibatch": torch.full((2, 4), math.nan),
            "wide": torch.full((2, 4, 3), math.nan),
            "reward_parts": parts,
            "rewards": torch.full((2,), math.nan),
            "scalars": TensorDict({"beta": torch.full((2,), math.nan)}, batch_size=[2]),
        },
        batch_size=[2],
    )
    scores = torch.full((2,), math.nan)
    out, filled = fill_masked(Output(logprobs=parts, scores=scores), micro, ("loss_mask",), schema)
    for values in (out.logprobs, filled["advantages"], filled["made_by_minibatch"], filled["wide"]):
        assert (values[~MASK] == 0).all()
        assert values[MASK].isnan().all()
    for values in (
        filled["reward_parts"],
        filled["rewards"],
        out.scores,
        filled["scalars", "beta"],
    ):
        assert values.isnan().all()
    assert (filled["response_ids"] == 7).all()
    assert micro["advantages"].isnan().all(), "the batch itself is not changed"
    assert out.get("values") is None
    with pytest.raises(AttributeError, match="RoleSpec.computes"):
        _ = out.values


def test_loss_mask_defaults_to_the_response_mask_of_trained_rows():
    train = torch.tensor([True, False])
    micro = TensorDict({"response_mask": MASK, "train": train}, batch_size=[2])
    assert torch.equal(add_loss_mask(micro)["loss_mask"], MASK & train[:, None])
    assert "loss_mask" not in micro
    micro["loss_mask"] = torch.ones_like(MASK)
    assert torch.equal(add_loss_mask(micro)["loss_mask"], train[:, None].expand(2, 4))


def test_the_schema_knows_which_columns_run_over_response_tokens():
    assert COLUMNS["advantages"].axis == "R"
    assert COLUMNS["reward_parts"].axis is None

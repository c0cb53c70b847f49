"""The core's side of a loss: masks, denominators, sums. An algorithm cannot normalise wrongly.

Inputs are filled with 0 outside the masks before the algorithm sees them, terms are selected with
``where`` and weighted by counts of the whole mini-batch, so that the shares of micro-batches and
ranks add up to the same loss, gradient and figures for every split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from rlframe.algorithm import REDUCTIONS, Algorithm, Output, Term
from rlframe.asking import ask
from rlframe.batching.columns import COLUMNS, Schema
from rlframe.errors import TrainingError, unknown_name
from rlframe.ops.reductions import loss_weights

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = [
    "Denominators",
    "add_loss_mask",
    "count_denominators",
    "fill_masked",
    "loss_share",
    "nonfinite",
    "reduce_terms",
]


@dataclass(frozen=True)
class Denominators:
    """Counts over one mini-batch, all micro-batches and ranks.

    ``tokens`` and ``rows`` by mask column: True slots, and rows with at least one; ``all_rows`` and
    ``atoms`` count what terms without a mask are averaged over.
    """

    tokens: Mapping[str, float]
    rows: Mapping[str, float]
    all_rows: float
    atoms: float


def count_denominators(
    columns: Mapping[str, Tensor] | TensorDict,
    masks: Sequence[str],
    reduce: Callable[[Tensor], Tensor],
    *,
    rows: int,
    atoms: int | None = None,
) -> Denominators:
    """Count a mini-batch before its first micro-batch runs.

    ``columns`` holds this rank's (b, R) bool mask columns of all rows of the mini-batch, ``rows``
    is their number, ``atoms`` that of its atoms (default: every row is one). ``reduce`` sums a
    tensor over the data-parallel ranks and is called once, on every rank.

    Raises TrainingError when a mask column is missing or not bool.
    """
    counts = [float(rows), float(rows if atoms is None else atoms)]
    for name in masks:
        mask = _mask_column(columns, name, "Algorithm.masks")
        counts += [float(mask.sum()), float(mask.any(1).sum())]
    total = reduce(torch.tensor(counts, dtype=torch.float64)).tolist()
    return Denominators(
        tokens=dict(zip(masks, total[2::2], strict=True)),
        rows=dict(zip(masks, total[3::2], strict=True)),
        all_rows=total[0],
        atoms=total[1],
    )


def fill_masked(
    out: Output, micro: TensorDict, masks: Sequence[str], schema: Schema = COLUMNS
) -> tuple[Output, TensorDict]:
    """Outputs and a shallow copy of the micro-batch with 0 in every slot outside all ``masks``.

    That concerns float (b, R, ...) outputs and columns over response tokens; ``where`` keeps a NaN
    there out of the values and of the gradient alike.
    """
    if not masks:
        return out, micro
    union = torch.stack([_mask_column(micro, name, "Algorithm.masks") for name in masks]).any(0)

    def fill(values: Tensor) -> Tensor:
        if not values.is_floating_point() or values.shape[:2] != union.shape:
            return values
        inside = union.to(values.device).reshape(*union.shape, *[1] * (values.dim() - 2))
        return torch.where(inside, values, values.new_zeros(()))

    outputs = {f.name: out.get(f.name) for f in fields(Output)}
    filled = Output(**{name: fill(v) for name, v in outputs.items() if v is not None})
    columns = micro.copy()
    for name in micro.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        if isinstance(micro[name], Tensor) and (name not in schema or schema[name].axis == "R"):
            columns[name] = fill(micro[name])
    return filled, columns


def reduce_terms(
    terms: Mapping[str, Term],
    micro: Mapping[str, Tensor] | TensorDict,
    denominators: Denominators,
    fixed_length: float = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A micro-batch's share () of the loss, and each term's share of its figure, () float64.

    Shares add up over micro-batches and ranks: to the loss ``sum(coef * reduced term)``, in float32
    or better and differentiable, and to the reduced, unscaled term. A mini-batch without any
    counted entry has loss 0 and gradient 0. A non-finite value in a counted slot makes its term's
    figure non-finite: :func:`nonfinite` names it.

    ``fixed_length`` is the constant of that reduction, tokens. Raises TrainingError naming the term
    when its mask, shape or reduction is wrong.
    """
    shares: list[Tensor] = []
    figures: dict[str, Tensor] = {}
    for name, term in terms.items():
        selected, weights = _select(name, term, micro, denominators, fixed_length)
        figures[name] = (selected.detach().double() * weights).sum()
        if term.coef:
            wide = selected.to(torch.promote_types(selected.dtype, torch.float32))
            shares.append(term.coef * (wide * weights.to(wide.dtype)).sum())
    return torch.stack(shares).sum() if shares else torch.zeros(()), figures


def loss_share(
    algorithm: Algorithm,
    role: str,
    out: Output,
    micro: TensorDict,
    denominators: Denominators,
    *,
    fixed_length: float = 0,
    schema: Schema = COLUMNS,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Fill, ask the algorithm for its terms and figures, reduce: what a worker does a micro-batch.

    Raises TrainingError as :func:`reduce_terms`, when a figure has the name of a term, and for what
    the algorithm raises.
    """
    filled, columns = fill_masked(out, micro, algorithm.masks, schema)
    terms = _asked_terms(algorithm, "loss", role, filled, columns)
    loss, figures = reduce_terms(terms, columns, denominators, fixed_length)
    with torch.no_grad():
        more = _asked_terms(algorithm, "metrics", role, filled, columns)
        twice = sorted(set(more) & set(terms))
        if twice:
            raise TrainingError(
                f"'{twice[0]}' is both a loss term and a figure of role '{role}': rename one"
            )
        return loss, {**figures, **reduce_terms(more, columns, denominators, fixed_length)[1]}


def _asked_terms(
    algorithm: Algorithm, method: str, role: str, out: Output, micro: TensorDict
) -> Mapping[str, Term]:
    """What ``loss`` or ``metrics`` gives. Raises TrainingError where that is not terms by name."""
    terms: Any = ask(algorithm, method, role, out, micro)
    where = f"{type(algorithm).__name__}.{method}()"
    if not isinstance(terms, Mapping):
        raise TrainingError(f"{where} returned {type(terms).__name__}: return a dict of Terms")
    for name, term in terms.items():
        if not isinstance(term, Term):
            raise TrainingError(
                f"{where} returned '{name}' as {type(term).__name__}: wrap it in rlframe.Term"
            )
        if not isinstance(term.values, Tensor):
            _fail(name, f"its values are {type(term.values).__name__}, not a tensor")
    return terms


def nonfinite(figures: Mapping[str, float | Tensor]) -> list[str]:
    """Names of the figures that are NaN or infinite."""
    return [name for name, value in figures.items() if not torch.isfinite(torch.as_tensor(value))]


def add_loss_mask(micro: TensorDict) -> TensorDict:
    """A shallow copy of a batch whose ``loss_mask`` is final.

    It is False outside ``response_mask`` and in rows with ``train=False``, whatever an algorithm
    wrote: only tokens that the policy sampled count.
    """
    mask = micro["response_mask"]
    if "loss_mask" in micro:
        mask = mask & micro["loss_mask"]
    out = micro.copy()
    out["loss_mask"] = mask & micro["train"][:, None]
    return out


def _mask_column(columns: Mapping[str, Tensor] | TensorDict, name: str, where: str) -> Tensor:
    known = sorted(columns.keys())
    if name not in known:
        raise TrainingError(f"{where}: {unknown_name('mask column', name, known)}")
    mask: Tensor = columns[name]
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise TrainingError(
            f"{where}: a mask is a bool (b, R) column; '{name}' is {mask.dtype} {tuple(mask.shape)}"
        )
    return mask


def _select(
    name: str,
    term: Term,
    micro: Mapping[str, Tensor] | TensorDict,
    denominators: Denominators,
    fixed_length: float,
) -> tuple[Tensor, Tensor]:
    """A term's values with 0 where they do not count, and their float64 weights."""
    values = term.values.float() if not term.values.is_floating_point() else term.values
    if term.mask is None:
        return values, _unmasked_weights(name, term, micro, denominators)
    if term.mask not in denominators.tokens:
        known = ", ".join(denominators.tokens) or "none"
        _fail(name, f"its mask '{term.mask}' is not in Algorithm.masks ({known}): add it there")
    mask = _mask_column(micro, term.mask, f"term '{name}'").to(values.device)
    tokens, rows = denominators.tokens[term.mask], denominators.rows[term.mask]
    if values.shape == mask.shape:
        if term.reduction not in REDUCTIONS:
            _fail(name, f"per-token values take one of {', '.join(REDUCTIONS)}")
        if term.reduction == "fixed-length" and fixed_length <= 0:
            _fail(name, "the reduction 'fixed-length' needs the longest response, in tokens")
        weights = loss_weights(
            mask, term.reduction, tokens=tokens, rows=rows, fixed_length=fixed_length
        )
    elif values.shape == mask.shape[:1]:
        _needs_mean(name, term)
        mask = mask.any(1)
        weights = mask.double() / max(rows, 1)
    else:
        _fail(
            name,
            f"its values have shape {tuple(values.shape)}; the micro-batch is {tuple(mask.shape)}, "
            "so return (b, R) or (b,) without reducing",
        )
    return torch.where(mask, values, torch.zeros_like(values)), weights


def _unmasked_weights(
    name: str,
    term: Term,
    micro: Mapping[str, Tensor] | TensorDict,
    denominators: Denominators,
) -> Tensor:
    if term.values.dim() != 1:
        _fail(name, f"values of shape {tuple(term.values.shape)} need a mask")
    _needs_mean(name, term)
    if term.per == "row":
        rows = len(next(iter(micro.values())))
        if len(term.values) != rows:
            _fail(name, f"it has {len(term.values)} values for {rows} rows; is it per='atom'?")
    count = denominators.all_rows if term.per == "row" else denominators.atoms
    return torch.full_like(term.values, 1 / max(count, 1), dtype=torch.float64)


def _needs_mean(name: str, term: Term) -> None:
    if term.reduction != "mean":
        _fail(name, f"one value a row or atom takes reduction='mean', not '{term.reduction}'")


def _fail(name: str, problem: str) -> NoReturn:
    raise TrainingError(f"loss term '{name}': {problem}")

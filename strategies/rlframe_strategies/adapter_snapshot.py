"""Adapters in snapshots: what they belong to, and merging them into a model that is not trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.errors import SnapshotError
from rlframe.weights.layout import Layout, ParamInfo
from rlframe.weights.merging import merge
from rlframe.weights.storage import local_view
from rlframe_strategies.boxes import SavedBoxes
from rlframe_strategies.optim import squared_norm

if TYPE_CHECKING:
    from rlframe_strategies.base import TorchStrategy

__all__ = ["adapter_state", "check_adapters", "merge_saved", "merges"]

_SAME_BASE = 1e-6
"""Relative difference that another order of summing may make."""


def adapter_state(strategy: TorchStrategy) -> dict[str, Any] | None:
    """What adapters belong to: their form, and a number that tells one base from another."""
    if strategy.lora is None:
        return None
    frozen = {n: w for n, w in strategy.weights().items() if n not in strategy.stored}
    return {**strategy.lora.state, "base": _size(strategy, frozen)}


def check_adapters(strategy: TorchStrategy, state: Mapping[str, Any], directory: Path) -> None:
    """Raise SnapshotError where a snapshot's adapters, or their lack, are not the strategy's."""
    saved, mine = state.get("adapters"), adapter_state(strategy)  # older ones do not say
    if saved is None and mine is None:
        return
    if saved is None or mine is None:
        have = "the whole model" if saved is None else f"adapters of rank {saved['rank']}"
        raise SnapshotError(
            f"snapshot {directory} holds {have}: set model.lora.rank="
            f"{0 if saved is None else saved['rank']}, or start anew"
        )
    for name in ("rank", "alpha", "targets"):
        if saved[name] != mine[name]:
            raise SnapshotError(
                f"snapshot {directory} has adapters of {name} {saved[name]}, the run of "
                f"{mine[name]}: set model.lora.{name} as it was, or start anew"
            )
    _check_base(strategy, saved["base"], mine["base"], directory)


def merges(strategy: TorchStrategy, state: Mapping[str, Any]) -> bool:
    """Whether a snapshot has adapters and the strategy's model is one that is not trained."""
    return strategy.optimiser is None and bool(state.get("adapters"))


@torch.no_grad()
def merge_saved(strategy: TorchStrategy, saved: SavedBoxes, directory: Path) -> None:
    """Add a snapshot's adapters to the weights, for good, and take its other weights."""
    state = saved.state()["adapters"]
    weights, layout = strategy.weights(), strategy.layout()
    shapes = saved.shapes("weight")
    frozen = {name: weight for name, weight in weights.items() if name not in shapes}
    _check_base(strategy, state["base"], _size(strategy, frozen), directory)
    adapters = {name: shape for name, shape in shapes.items() if name not in strategy.params}
    low = _whole(saved, adapters, weights)
    pieces = layout.ranks[strategy.rank.rank]
    taken = [piece for piece in pieces if piece.name in shapes]
    saved.read_into("weight", taken, layout, weights)
    scale = state["alpha"] / state["rank"]
    for piece in pieces:
        layer = piece.name.removesuffix(".weight")
        down, up = low.get(f"{layer}.lora_A.weight"), low.get(f"{layer}.lora_B.weight")
        if down is not None and up is not None:
            view = local_view(piece, weights[piece.view.key])
            merge(view, view, (down, up), scale, piece.box)


def _whole(
    saved: SavedBoxes, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Saved tensors, whole, in the type and on the device of the weights."""
    first = next(iter(like.values()))
    kind = str(first.dtype).removeprefix("torch.")
    layout = Layout.full({name: ParamInfo(shape, kind) for name, shape in shapes.items()})
    found = {name: first.new_empty(shape) for name, shape in shapes.items()}
    saved.read_into("weight", layout.ranks[0], layout, found)
    return found


def _size(strategy: TorchStrategy, weights: Mapping[str, Tensor]) -> float:
    """Squares of weights, summed over the ranks; every rank takes part."""
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    for name, weight in weights.items():
        if strategy.counts(name):
            total += squared_norm(weight)
    return float(strategy.sum_squares(total))


def _check_base(strategy: TorchStrategy, saved: float, mine: float, directory: Path) -> None:
    if not math.isclose(saved, mine, rel_tol=_SAME_BASE):
        raise SnapshotError(
            f"snapshot {directory} has adapters of another model than {strategy.source}: its "
            "weights have changed; set model.path to the model that they were trained on"
        )

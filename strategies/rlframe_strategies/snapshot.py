"""Save and load a strategy through :mod:`rlframe_strategies.boxes`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlframe.errors import SnapshotError
from rlframe_strategies.boxes import SavedBoxes, held_parts, write_parts
from rlframe_strategies.optim import squared_norm

if TYPE_CHECKING:
    from rlframe_strategies.base import TorchStrategy

__all__ = ["load_snapshot", "save_snapshot"]

_SAME_BASE = 1e-6
"""Relative difference that another order of summing may make."""


def save_snapshot(strategy: TorchStrategy, directory: Path) -> None:
    """Write this rank's boxes, counters and random state.

    Raises ``SnapshotError`` when the disk refuses.
    """
    from safetensors import SafetensorError

    rank, layout = strategy.rank.rank, strategy.stored_layout()
    parts = held_parts(layout, rank, {"weight": strategy.stored_weights()})
    state: dict[str, Any] = {"kind": strategy.spec.kind, "optimiser": None}
    state["adapters"] = _adapter_state(strategy)
    optimiser = strategy.optimiser
    if optimiser is not None:
        parts += held_parts(strategy.state_layout(), rank, optimiser.state())
        state["optimiser"] = optimiser.config.name
        state["steps"] = optimiser.steps
        state["counts"] = optimiser.counts()
    extra = {"rng": torch.get_rng_state()}
    if strategy.device.type == "cuda":
        extra["rng_cuda"] = torch.cuda.get_rng_state(strategy.device)
    try:
        write_parts(directory, rank, layout, parts, state, extra)
    except (OSError, SafetensorError) as error:
        raise SnapshotError(f"rank {rank}: {error}") from error


def load_snapshot(strategy: TorchStrategy, directory: Path) -> None:
    """Read weights and, where there is an optimiser, its state; in place.

    A rank beyond the saved ones takes the random state of its number modulo the saved world. Raises
    ``SnapshotError`` for another model, another optimiser, missing or damaged files.
    """
    saved = SavedBoxes(directory)
    state = saved.state()
    if state["kind"] != strategy.spec.kind:
        raise SnapshotError(f"snapshot {directory} is of a {state['kind']} model")
    _check_adapters(strategy, state, directory)
    layout = strategy.stored_layout()
    pieces = layout.ranks[strategy.rank.rank]
    saved.read_into("weight", pieces, layout, strategy.stored_weights())
    optimiser = strategy.optimiser
    if optimiser is not None:
        if state["optimiser"] != optimiser.config.name:
            raise SnapshotError(
                f"snapshot {directory} was written with optimiser {state['optimiser']}, "
                f"not {optimiser.config.name}: set optim.name or start anew"
            )
        layout = strategy.state_layout()
        for kind, buffers in optimiser.state().items():
            saved.read_into(kind, layout.ranks[strategy.rank.rank], layout, buffers)
        optimiser.restore(int(state["steps"]), state["counts"])
    _restore_rng(strategy, saved)


def _adapter_state(strategy: TorchStrategy) -> dict[str, Any] | None:
    """What adapters belong to: their form, and a number that tells one base from another."""
    if strategy.lora is None:
        return None
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    for name, weight in strategy.weights().items():
        if name not in strategy.stored and strategy.counts(name):
            total += squared_norm(weight)
    return {**strategy.lora.state, "base": float(strategy.sum_squares(total))}


def _check_adapters(strategy: TorchStrategy, state: Mapping[str, Any], directory: Path) -> None:
    saved, mine = state.get("adapters"), _adapter_state(strategy)  # older ones do not say
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
    if not math.isclose(saved["base"], mine["base"], rel_tol=_SAME_BASE):
        raise SnapshotError(
            f"snapshot {directory} has adapters of another model than {strategy.source}: its "
            "weights have changed; set model.path to the model that they were trained on"
        )


def _restore_rng(strategy: TorchStrategy, saved: SavedBoxes) -> None:
    rank = strategy.rank.rank % saved.world
    rng = saved.extra("rng", rank)
    if rng is not None:
        torch.set_rng_state(rng)
    cuda = saved.extra("rng_cuda", rank)
    if cuda is not None and strategy.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, strategy.device)

"""Save and load a strategy through :mod:`rlframe_strategies.boxes`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlframe.errors import SnapshotError
from rlframe_strategies.adapter_snapshot import (
    adapter_state,
    check_adapters,
    merge_saved,
    merges,
)
from rlframe_strategies.boxes import SavedBoxes, held_parts, staged_parts

if TYPE_CHECKING:
    from rlframe_strategies.base import TorchStrategy

__all__ = ["load_snapshot", "save_snapshot", "staged_snapshot"]


def save_snapshot(strategy: TorchStrategy, directory: Path) -> None:
    """Write this rank's boxes, counters and random state.

    Raises ``SnapshotError`` when the disk refuses.
    """
    staged_snapshot(strategy, directory, copy=False)()


def staged_snapshot(
    strategy: TorchStrategy, directory: Path, *, copy: bool = True
) -> Callable[[], None]:
    """What :func:`save_snapshot` writes, and the call that writes it; see ``staged_parts``."""
    rank, layout = strategy.rank.rank, strategy.stored_layout()
    parts = held_parts(layout, rank, {"weight": strategy.stored_weights()})
    state: dict[str, Any] = {"kind": strategy.spec.kind, "optimiser": None}
    state["adapters"] = adapter_state(strategy)
    optimiser = strategy.optimiser
    if optimiser is not None:
        parts += held_parts(strategy.state_layout(), rank, optimiser.state())
        state["optimiser"] = optimiser.config.name
        state["steps"] = optimiser.steps
        state["counts"] = optimiser.counts()
    extra = {"rng": torch.get_rng_state()}
    if strategy.device.type == "cuda":
        extra["rng_cuda"] = torch.cuda.get_rng_state(strategy.device)
    return staged_parts(directory, rank, layout, parts, state, extra, copy=copy)


def load_snapshot(strategy: TorchStrategy, directory: Path) -> None:
    """Read weights and, where there is an optimiser, its state; in place.

    Adapters are merged into a model that is not trained. A rank beyond the saved ones takes the
    random state of its number modulo the saved world. Raises ``SnapshotError`` for another model,
    another optimiser, missing or damaged files.
    """
    saved = SavedBoxes(directory)
    state = saved.state()
    if state["kind"] != strategy.spec.kind:
        raise SnapshotError(f"snapshot {directory} is of a {state['kind']} model")
    if merges(strategy, state):
        merge_saved(strategy, saved, directory)
        return
    check_adapters(strategy, state, directory)
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


def _restore_rng(strategy: TorchStrategy, saved: SavedBoxes) -> None:
    rank = strategy.rank.rank % saved.world
    rng = saved.extra("rng", rank)
    if rng is not None:
        torch.set_rng_state(rng)
    cuda = saved.extra("rng_cuda", rank)
    if cuda is not None and strategy.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, strategy.device)

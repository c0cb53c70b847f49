"""Related weights in one storage, for engines that multiply by them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["lay_side_by_side", "mates"]

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def lay_side_by_side(module: nn.Module) -> None:
    """Let query, key and value share one storage, and gate and up, wherever they are found.

    A rollout engine on the same weights then needs no copy to multiply by them at once.
    """
    for parent in module.modules():
        for names in _FUSED:
            _join([_plain(getattr(parent, name, None)) for name in names])


def mates(names: Iterable[str]) -> set[str]:
    """Weights that lie beside one of the named ones."""
    found = set()
    for name in names:
        parent, _, layer = name.removesuffix(".weight").rpartition(".")
        group = next((one for one in _FUSED if layer in one), ())
        found |= {f"{parent}.{other}.weight" for other in group}
    return found


def _plain(layer: Any) -> Any:
    """A layer itself, or what an adapter was put around."""
    return getattr(layer, "base_layer", layer)


@torch.no_grad()
def _join(layers: list[Any]) -> None:
    """Let linear layers of one input share one storage, in order."""
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return
    for kind in ("weight", "bias"):
        parts = [getattr(layer, kind) for layer in layers]
        if any(part is None or part.shape[1:] != parts[0].shape[1:] for part in parts):
            continue
        whole = torch.cat([part.data for part in parts])
        for part, data in zip(parts, torch.split(whole, [len(p) for p in parts]), strict=True):
            part.data = data

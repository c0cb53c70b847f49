"""One process, one device; nothing is sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from rlframe.errors import ConfigError
from rlframe.interfaces.strategy import RankInfo
from rlframe.layout import Layout
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.module import LanguageModel

__all__ = ["SingleStrategy"]

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class SingleStrategy(TorchStrategy):
    """The whole model in one process.

    Weights of query, key and value, and of gate and up, lie side by side in one storage, so that a
    rollout engine on the same weights can multiply by them at once without a copy.
    """

    capabilities = frozenset({"packing", "grad-checkpoint"})

    @dataclass(frozen=True)
    class Config:
        """Options of ``strategy: single``."""

        packing: Literal["auto", "on", "off"] = "auto"
        """auto, on or off: lay rows side by side instead of padding them."""

    def __init__(self, config: Any, rank: RankInfo) -> None:
        super().__init__(config, rank)
        if rank.world != 1:
            raise ConfigError(
                f"strategy 'single' runs on one rank, not {rank.world}: use --strategy fsdp"
            )

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move, and put related weights side by side there."""
        super().move(module, device)
        for parent in module.modules():
            for names in _FUSED:
                _side_by_side([getattr(parent, name, None) for name in names])

    def layout(self) -> Layout:
        """Every parameter whole."""
        return Layout.full(self.params)


@torch.no_grad()
def _side_by_side(layers: list[Any]) -> None:
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

"""One process, one device; nothing is sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlframe.errors import ConfigError
from rlframe.interfaces.strategy import RankInfo
from rlframe.weights.layout import Layout
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.side_by_side import lay_side_by_side

if TYPE_CHECKING:
    import torch

    from rlframe_strategies.module import LanguageModel

__all__ = ["SingleStrategy"]


class SingleStrategy(TorchStrategy):
    """The whole model in one process.

    Weights of query, key and value, and of gate and up, lie side by side in one storage, so that a
    rollout engine on the same weights can multiply by them at once without a copy.
    """

    capabilities = frozenset({"packing", "grad-checkpoint", "lora"})
    lays_side_by_side = True

    @dataclass(frozen=True)
    class Config:
        """Options of ``strategy: single``."""

        packing: Literal["auto", "on", "off"] = "auto"
        """auto, on or off: lay rows side by side instead of padding them."""

    def __init__(self, config: Any, rank: RankInfo) -> None:
        super().__init__(config, rank)
        if rank.world != 1:
            raise ConfigError(
                f"strategy 'single' runs on one rank, not {rank.world}: use --strategy ddp or fsdp"
            )

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move, and put related weights side by side there."""
        super().move(module, device)
        lay_side_by_side(module)

    def layout(self) -> Layout:
        """Every parameter whole."""
        return Layout.full(self.params)

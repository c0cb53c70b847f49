"""Options of ``strategy: megatron``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlframe.config import check_range

__all__ = ["MegatronConfig"]


@dataclass(frozen=True)
class MegatronConfig:
    """Parallel sizes and how memory is saved; data parallelism takes the ranks that are left."""

    tp: int = 1
    """Tensor-parallel ranks, at least 1; divides heads, key-value heads and intermediate size."""
    pp: int = 1
    """Pipeline stages, at least 1; the first ones have a layer more where layers do not divide."""
    vpp: int = 1
    """Runs of layers on each stage (interleaved schedule), at least 1."""
    cp: int = 1
    """Context-parallel ranks: 1, since Megatron's context parallelism needs Transformer Engine."""
    sequence_parallel: bool = False
    """Cut norms and residuals by tokens over the tensor-parallel ranks."""
    distributed_optimizer: bool = True
    """Share optimiser state and the sums of gradients out over the data-parallel ranks."""
    recompute: Literal["full", "selective"] = "full"
    """What model.gradient_checkpointing makes again in the backward pass: layers, or attention."""
    packing: Literal["auto", "on", "off"] = "auto"
    """Lay rows side by side; auto does where Transformer Engine's attention needs no mask."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        for name in ("tp", "pp", "vpp", "cp"):
            check_range(self, name, 1)
        if self.vpp > 1 and self.pp == 1:
            raise ValueError("vpp above 1 needs pp above 1: there is no pipeline to interleave")
        if self.sequence_parallel and self.tp == 1:
            raise ValueError("sequence_parallel needs tp above 1: it cuts tokens over those ranks")
        if self.cp > 1:
            raise ValueError(
                f"cp={self.cp}: Megatron's context parallelism needs Transformer Engine and is not "
                "offered here: take --strategy fsdp with strategy.cp, or cp=1"
            )

"""Data parallelism: the whole model on every rank, gradients summed over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rlframe.config import check_range
from rlframe.weights.layout import Layout
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.gradient_sum import GradientSum
from rlframe_strategies.groups import ProcessGroup
from rlframe_strategies.side_by_side import lay_side_by_side

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe.interfaces.strategy import LossFn
    from rlframe_strategies.module import LanguageModel

__all__ = ["DDPStrategy"]


class DDPStrategy(TorchStrategy):
    """Every rank holds everything and does the same step on the same sums.

    Gradients travel once an optimiser step, in buckets, while the last micro-batch's backward pass
    runs. Weights lie side by side as in ``single``, so that a rollout engine beside shares them.
    """

    capabilities = frozenset({"dp", "packing", "grad-checkpoint", "lora"})
    lays_side_by_side = True

    @dataclass(frozen=True)
    class Config:
        """Options of ``strategy: ddp``."""

        packing: Literal["auto", "on", "off"] = "auto"
        """auto, on or off: lay rows side by side instead of padding them."""
        bucket_mib: float = 25.0
        """Gradients that are summed at once, MiB, above 0."""
        reduce_dtype: Literal["none", "float32", "bfloat16", "float16"] = "none"
        """Type in which gradients are summed: none (that of the weights), float32, ..."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "bucket_mib", above=0)

    _sums: GradientSum | None = None

    def start(self) -> None:
        """Join the process group."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.group = ProcessGroup(self.rank, self.device)

    def place(self, module: LanguageModel) -> None:
        """Move the module; watch gradients where other ranks have theirs."""
        super().place(module)
        if self.spec.optim is not None and self.rank.world > 1:
            name = self.config.reduce_dtype
            self._sums = GradientSum(
                dict(module.named_weights()),
                rank=self.rank.rank,
                bucket_bytes=int(self.config.bucket_mib * 2**20),
                dtype=None if name == "none" else getattr(torch, name),
            )

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move, and put related weights side by side there."""
        super().move(module, device)
        lay_side_by_side(module)

    def layout(self) -> Layout:
        """Every parameter whole, on every rank."""
        return Layout.full(self.params, self.rank.world)

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce over the ranks; a new tensor."""
        return self.group.reduce(values, op)

    def forward_backward(
        self, micros: Sequence[TensorDict], computes: Sequence[str], loss_fn: LossFn
    ) -> None:
        """See the base; the pass over the last micro-batch that has rows overlaps with the sums."""
        if self._sums is None:
            super().forward_backward(micros, computes, loss_fn)
            return
        last = max((i for i, micro in enumerate(micros) if len(micro)), default=0)
        self._sums.begin()
        super().forward_backward(micros[:last], computes, loss_fn)
        with self._sums.last_pass():
            super().forward_backward(micros[last:], computes, loss_fn)

    def gradients(self) -> dict[str, Tensor]:
        """The sums over all ranks."""
        return super().gradients() if self._sums is None else self._sums.gradients()

    def step(self, max_grad_norm: float) -> float:
        """See the base."""
        norm = super().step(max_grad_norm)
        if self._sums is not None:
            self._sums.clear()
        return norm

    def close(self) -> None:
        """Drop the module and leave the process group."""
        super().close()
        self._sums = None
        self.group.leave()

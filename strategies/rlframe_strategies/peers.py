"""Collectives of a model-parallel group that autograd sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Peers"]


@dataclass(frozen=True)
class Peers:
    """A process group of ``size`` ranks that hold parts of one model, and this one's ``rank``."""

    group: Any
    size: int
    rank: int

    def copy(self, values: Tensor) -> Tensor:
        """The same values, which all ranks have; their gradients are summed over the ranks."""
        return cast("Tensor", _Copy.apply(values, self))  # type: ignore[no-untyped-call]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks; all of them have the same gradient of it."""
        return cast("Tensor", _Sum.apply(values, self))  # type: ignore[no-untyped-call]

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a contiguous tensor in place, without a gradient."""
        from torch import distributed as dist

        if self.size > 1 and values.numel():
            dist.all_reduce(values, group=self.group)
        return values

    def gather(self, values: Tensor) -> Tensor:
        """Equal shapes of all ranks, stacked by rank, without a gradient."""
        from torch import distributed as dist

        values = values.contiguous()
        whole = values.new_empty(self.size, *values.shape)
        if values.numel():
            dist.all_gather(list(whole.unbind()), values, group=self.group)
        return whole


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        return ctx.peers.all_reduce(total), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, peers: Peers) -> Tensor:
        return peers.all_reduce(values.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None

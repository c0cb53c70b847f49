"""Saved activations in host memory between the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["HostActivations"]


class HostActivations(saved_tensors_hooks):
    """A context for the forward pass: what autograd saves lies on the host until it is read.

    Weights, and views of them, are left where they are: FSDP frees and gathers them itself. Copies
    run on the current stream, from pinned memory where there is a GPU.
    """

    def __init__(self) -> None:
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Any:
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        if tensor.device.type == "cpu":
            return tensor.device, tensor
        host = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, tensor = packed
        there: Tensor = tensor.to(device, non_blocking=True)
        return there

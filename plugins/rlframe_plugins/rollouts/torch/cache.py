"""Key-value cache: blocks of tokens in memory that grows, and slots for some on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS

__all__ = ["KVCache"]

_LEAST = 16
"""Blocks and slots that memory is taken for at least."""


class KVCache:
    """A layer's keys (blocks, kv_heads, head_dim, BLOCK), values (blocks, kv_heads, BLOCK, dim).

    Slots past a sequence's length hold zeros or stale finite numbers, and are masked. The layers
    grow one after the other, so that growing needs memory for one of them twice.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        key = (kv_heads, head_dim, BLOCK_TOKENS)
        value = (kv_heads, BLOCK_TOKENS, head_dim)
        self._shapes = (key,) * layers + (value,) * layers
        self._layers = layers
        self._here: list[Tensor] = []
        self._host: list[Tensor] = []

    @property
    def blocks(self) -> int:
        """Blocks that memory is taken for."""
        return self._here[0].shape[0] if self._here else 0

    @property
    def slots(self) -> int:
        """Slots of host memory."""
        return self._host[0].shape[0] if self._host else 0

    def keys(self, layer: int) -> Tensor:
        """Keys of a layer."""
        return self._here[layer]

    def values(self, layer: int) -> Tensor:
        """Values of a layer."""
        return self._here[self._layers + layer]

    def reserve(self, blocks: int, limit: int, like: Tensor) -> None:
        """Make room for ``blocks``, or twice as many as there were up to ``limit``.

        ``like`` gives dtype and device.
        """
        if blocks > self.blocks:
            wanted = max(blocks, min(limit, max(_LEAST, 2 * self.blocks)))
            self._grow(self._here, wanted, like)

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks over other blocks, all of them at once."""
        for tensor in self._here:
            tensor[targets] = tensor[sources]

    @torch.inference_mode()
    def store(self, blocks: Sequence[int], slots: Sequence[int], limit: int) -> None:
        """Copy blocks to the host's slots, of which there may be ``limit``."""
        if max(slots) >= self.slots:
            like = self._here[0].new_empty(0, device="cpu")
            wanted = max(max(slots) + 1, min(limit, max(_LEAST, 2 * self.slots)))
            self._grow(self._host, wanted, like)
        for here, there in zip(self._here, self._host, strict=True):
            there[slots] = here[blocks].to(there.device)

    @torch.inference_mode()
    def fetch(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """The reverse of :meth:`store`."""
        for here, there in zip(self._here, self._host, strict=True):
            here[blocks] = there[slots].to(here.device, non_blocking=True)

    def release(self, host: bool) -> None:
        """Give the memory back, and that of the slots where ``host``."""
        self._here.clear()
        if host:
            self._host.clear()

    def _grow(self, tensors: list[Tensor], count: int, like: Tensor) -> None:
        """Host memory beside a GPU is page-locked, for fast copies."""
        pinned = tensors is self._host and torch.cuda.is_available()
        for index, shape in enumerate(self._shapes):
            grown = torch.zeros(
                (count, *shape), dtype=like.dtype, device=like.device, pin_memory=pinned
            )
            if len(tensors) <= index:
                tensors.append(grown)
            else:
                grown[: len(tensors[index])] = tensors[index]
                tensors[index] = grown

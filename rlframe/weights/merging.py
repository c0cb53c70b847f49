"""Weights with their adapters added, for whoever reads whole weights by canonical name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from rlframe.weights.adapters import Adapters
from rlframe.weights.layout import Box, ParamInfo, Piece
from rlframe.weights.storage import allocate, dtypes, local_view

__all__ = ["MergedWeights", "merge"]

_ELEMENTS = 1 << 22
"""Elements that are added up in float64 at once."""


@torch.no_grad()
def merge(
    out: Tensor, weight: Tensor, low_rank: tuple[Tensor, Tensor], scale: float, box: Box
) -> None:
    """Write ``weight + scale * up @ down`` into ``out``; both are the part in ``box``.

    ``low_rank`` are ``down`` (r, in) and ``up`` (out, r), whole. Added up in float64 and rounded to
    the weight's type, so that another cut of the weight gives the same elements; then to ``out``'s.
    """
    rows, columns = box.slices()
    down = low_rank[0][:, columns].double() * scale
    up = low_rank[1][rows].double()
    step = max(1, _ELEMENTS // max(1, box.shape[1]))
    for start in range(0, box.shape[0], step):
        part = slice(start, start + step)
        out[part] = torch.addmm(weight[part].double(), up[part], down).to(weight.dtype)


class MergedWeights:
    """A rank's weights with adapters: storage of its own for what they change, else the given one.

    ``pieces`` are the rank's; ``beside`` names further parameters that are copied so that they lie
    next to a changed one. Every :meth:`fill` writes into the same storage.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        params: Mapping[str, ParamInfo],
        adapters: Adapters,
        device: torch.device,
        beside: Collection[str] = (),
    ) -> None:
        wanted = {*adapters.pairs, *beside}
        keys = {piece.view.key for piece in pieces if piece.name in wanted}
        self._adapters = adapters
        self._held = [piece for piece in pieces if piece.view.key in keys]
        self._out = allocate(self._held, dtypes(params), device)
        self._filled = False

    @property
    def keys(self) -> Collection[str]:
        """Keys of the buffers that have storage of their own."""
        return self._out.keys()

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return sum(t.numel() * t.element_size() for t in self._out.values())

    @torch.no_grad()
    def fill(self, base: Mapping[str, Tensor], adapters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by key; ``base`` are the weights by key, ``adapters`` whole tensors by name."""
        for piece in self._held:
            out = local_view(piece, self._out[piece.view.key])
            weight = local_view(piece, base[piece.view.key])
            pair = self._adapters.pairs.get(piece.name)
            if pair is not None:
                low_rank = (adapters[pair.down], adapters[pair.up])
                merge(out, weight, low_rank, self._adapters.scale, piece.box)
            elif not self._filled:
                out.copy_(weight)
        self._filled = True
        return {**base, **self._out}

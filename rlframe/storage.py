"""A rank's storage for the pieces of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlframe.layout import ParamInfo, Piece

__all__ = ["allocate", "dtypes", "local_view"]


def dtypes(params: Mapping[str, ParamInfo]) -> dict[str, torch.dtype]:
    """Torch's dtype of each parameter."""
    return {name: getattr(torch, info.dtype) for name, info in params.items()}


def local_view(piece: Piece, buffer: Tensor) -> Tensor:
    """The part of a rank's buffer that holds a piece."""
    offset = buffer.storage_offset() + piece.view.offset
    return buffer.as_strided(piece.box.shape, piece.view.stride, offset)


def allocate(
    pieces: Sequence[Piece], types: Mapping[str, torch.dtype], device: torch.device
) -> dict[str, Tensor]:
    """Storage for a rank's pieces by key: one arena a dtype, buffers adjacent in layout order.

    A buffer of one dense piece has the piece's shape, any other is flat.
    """
    by_key: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_key.setdefault(piece.view.key, []).append(piece)
    extent = {key: max(_end(piece) for piece in held) for key, held in by_key.items()}
    total: dict[torch.dtype, int] = {}
    for key, held in by_key.items():
        kind = types[held[0].name]
        total[kind] = total.get(kind, 0) + extent[key]
    arenas = {kind: torch.zeros(size, dtype=kind, device=device) for kind, size in total.items()}
    used = dict.fromkeys(total, 0)
    out = {}
    for key, held in by_key.items():
        kind = types[held[0].name]
        flat = arenas[kind][used[kind] : used[kind] + extent[key]]
        used[kind] += extent[key]
        dense = len(held) == 1 and held[0].box.size == extent[key]
        out[key] = flat.view(held[0].box.shape) if dense else flat
    return out


def _end(piece: Piece) -> int:
    if not piece.box.size:
        return 0
    steps = zip(piece.box.shape, piece.view.stride, strict=True)
    return piece.view.offset + sum((n - 1) * step for n, step in steps) + 1

"""A rank's storage for the pieces of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlframe.weights.layout import ParamInfo, Piece

__all__ = ["allocate", "dtypes", "local_view", "moved", "named_views"]


def dtypes(params: Mapping[str, ParamInfo]) -> dict[str, torch.dtype]:
    """Torch's dtype of each parameter."""
    return {name: getattr(torch, info.dtype) for name, info in params.items()}


def local_view(piece: Piece, buffer: Tensor) -> Tensor:
    """The part of a rank's buffer that holds a piece."""
    offset = buffer.storage_offset() + piece.view.offset
    return buffer.as_strided(piece.box.shape, piece.view.stride, offset)


def moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same tensors on a device, each storage copied once; what is there already stays."""
    there: dict[int, Tensor] = {}
    out = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            whole = tensor.new_empty(0).set_(storage)
            there[storage.data_ptr()] = whole.to(device)
        base = there[storage.data_ptr()]
        out[name] = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return out


def named_views(pieces: Sequence[Piece], buffers: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """A rank's pieces by parameter; None where one is not in a single piece."""
    held = [piece for piece in pieces if piece.box.size]
    names = [piece.name for piece in held]
    if len(set(names)) < len(names):
        return None
    empty = {p.name: p for p in pieces if p.name not in names}
    return {p.name: local_view(p, buffers[p.view.key]) for p in (*held, *empty.values())}


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

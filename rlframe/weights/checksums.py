"""Checksums of weights that don't depend on how they are cut: trainer and replica can compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlframe.weights.layout import Box, Piece, strides
from rlframe.weights.storage import local_view

__all__ = ["Query", "checksum", "checksums"]

_CHUNK = 2**20
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd multipliers below 2**63: elements are mixed with their place, so that a swap shows.
_PLACE, _MIX = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D


@dataclass(frozen=True)
class Query:
    """A box of a parameter of canonical ``shape``, inside a piece that the asked rank holds.

    ``dtype`` is that of the replica, in which the bits are compared.
    """

    piece: Piece
    box: Box
    shape: tuple[int, ...]
    dtype: str


def checksums(
    queries: Sequence[Query], buffers: Mapping[str, Tensor], *, named: bool = False
) -> list[int]:
    """One number a query.

    ``buffers`` are storage by layout key, or with ``named`` the pieces themselves by parameter.
    """
    found = []
    for query in queries:
        piece = query.piece
        whole = buffers[piece.name] if named else local_view(piece, buffers[piece.view.key])
        part = whole[query.box.slices(piece.box)].detach()
        found.append(checksum(part.to(getattr(torch, query.dtype)), query.box, query.shape))
    return found


def checksum(part: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """Sum modulo 2**64 over the bits of a box's elements, each mixed with its canonical place.

    The checksums of disjoint boxes add up, modulo 2**64, to that of their union.
    """
    if not box.shape:
        return checksum(part.reshape(1), Box((0,), (1,)), (1,))
    total, row = 0, max(box.size // max(box.shape[0], 1), 1)
    rows = max(_CHUNK // row, 1)
    for start in range(0, box.shape[0], rows):
        count = min(rows, box.shape[0] - start)
        offset = (box.offset[0] + start, *box.offset[1:])
        total += _sum(part[start : start + count], offset, strides(shape))
    return total % 2**64


def _sum(part: Tensor, offset: tuple[int, ...], steps: tuple[int, ...]) -> int:
    bits = part.contiguous().view(_BITS[part.element_size()]).to(torch.int64)
    for axis, (start, step) in enumerate(zip(offset, steps, strict=True)):
        places = torch.arange(start, start + bits.shape[axis], device=bits.device)
        wide = [1] * bits.ndim
        wide[axis] = -1
        bits = bits + (places * step * _PLACE).view(wide)
    for _ in range(2):
        bits = bits * _MIX
        bits = bits ^ (bits >> 32 & 0xFFFFFFFF)
    return int(bits.sum())

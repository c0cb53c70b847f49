"""Which rows and columns of a Hugging Face parameter a vLLM layer holds, fused or cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Part", "assembled", "merged_parts", "qkv_parts", "renamed"]


@dataclass(frozen=True)
class Part:
    """``rows`` rows of a layer from ``source`` on are those of a parameter from ``target`` on.

    ``name`` replaces the last part of the layer's own name where the layer fuses several.
    """

    name: str
    source: int
    rows: int
    target: int


def qkv_parts(
    names: Sequence[str], heads: int, kv_heads: int, head_dim: int, rank: int, kv_copies: int
) -> list[Part]:
    """Query, key and value of a fused layer.

    Heads are those that this tensor-parallel rank holds; each key-value head is on ``kv_copies``
    ranks.
    """
    query, key = heads * head_dim, kv_heads * head_dim
    first = rank // kv_copies * key
    return [
        Part(names[0], 0, query, rank * query),
        Part(names[1], query, key, first),
        Part(names[2], query + key, key, first),
    ]


def merged_parts(names: Sequence[str], sizes: Sequence[int], rank: int) -> list[Part]:
    """Layers that are fused one after the other, of so many rows on each rank."""
    parts, at = [], 0
    for name, size in zip(names, sizes, strict=True):
        parts.append(Part(name, at, size, rank * size))
        at += size
    return parts


def renamed(layer: str, part: str) -> str:
    """``model.layers.0.self_attn.qkv_proj`` and ``q_proj`` to the name of the latter."""
    return f"{layer.rpartition('.')[0]}.{part}" if part else layer


def assembled(
    ranks: Iterable[Iterable[tuple[str, Tensor]]], starts: Sequence[Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Whole parameters from each rank's boxes; ``starts`` tell where a rank's begin, by name."""
    boxes: dict[str, list[tuple[Sequence[int], Tensor]]] = {}
    for tensors, where in zip(ranks, starts, strict=True):
        for name, tensor in tensors:
            boxes.setdefault(name, []).append((tuple(where[name]), tensor))
    whole = {}
    for name, found in boxes.items():
        shape = [
            max(start[axis] + part.shape[axis] for start, part in found)
            for axis in range(found[0][1].ndim)
        ]
        into = found[0][1].new_zeros(shape)
        for start, part in found:
            into[tuple(slice(s, s + n) for s, n in zip(start, part.shape, strict=True))] = part
        whole[name] = into
    return whole

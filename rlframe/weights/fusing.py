"""Layouts of engines that keep several parameters in one buffer, or one parameter in several. Pure.

The canonical space stays Hugging Face's: query, key and value (or gate and up) that an engine keeps
in one buffer are pieces of theirs with views of that buffer, in whatever order it has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlframe.errors import ConfigError
from rlframe.weights.layout import Box, Layout, LocalView, ParamInfo, Piece, strides
from rlframe.weights.sharding import Cut

__all__ = ["Fused", "experts_apart", "fused_layout", "fusions_of", "padded_vocabulary"]

_PARTS = (("qkv", ("q_proj", "k_proj", "v_proj")), ("gate_up", ("gate_proj", "up_proj")))


@dataclass(frozen=True)
class Fused:
    """A buffer ``key`` in which rows of several parameters follow each other.

    ``groups`` says in how many runs each parameter is cut for that, over all ranks: 1 stacks them
    whole ([Q; K; V], [gate; up]), the number of key-value heads interleaves them by query group,
    the number of rows alternates single rows. A rank that holds part of them has its share of the
    groups, at least one (key-value heads that several ranks hold).
    """

    key: str
    names: tuple[str, ...]
    groups: int = 1


def fused_layout(layout: Layout, fusions: Iterable[Fused]) -> Layout:
    """The same boxes, those of a fusion's parameters in its buffer on every rank.

    Raises ConfigError for parameters that a rank holds in part, cut otherwise than by rows, or with
    rows that its groups do not divide.
    """
    of_name = {name: fused for fused in fusions for name in fused.names}
    memo: dict[tuple[Piece, ...], tuple[Piece, ...]] = {}
    for pieces in layout.ranks:
        if pieces not in memo:
            memo[pieces] = tuple(_fuse(pieces, layout.params, of_name))
    return Layout(layout.params, tuple(memo[pieces] for pieces in layout.ranks))


def fusions_of(params: Mapping[str, ParamInfo], *, query_groups: int = 1) -> list[Fused]:
    """Query, key and value, and gate and up, of every module that has them apart.

    ``query_groups``: 1 for [Q; K; V] as rollout engines keep it, the number of key-value heads for
    the order by query group of training engines. Gate and up are stacked on each rank.
    """
    out: dict[str, Fused] = {}
    for name in params:
        module, _, leaf = name.rpartition(".")
        parent, _, layer = module.rpartition(".")
        for title, parts in _PARTS:
            names = tuple(f"{parent}.{part}.{leaf}" for part in parts)
            if layer in parts and all(one in params for one in names):
                key = f"{parent}.{title}.{leaf}"
                out[key] = Fused(key, names, query_groups if title == "qkv" else 1)
    return list(out.values())


def experts_apart(layout: Layout, cuts: Mapping[str, Cut]) -> Layout:
    """The same boxes with a buffer for every expert: ``...experts.3.gate_up_proj``."""
    memo: dict[tuple[Piece, ...], tuple[Piece, ...]] = {}
    for pieces in layout.ranks:
        if pieces not in memo:
            memo[pieces] = tuple(one for piece in pieces for one in _apart(piece, cuts[piece.name]))
    return Layout(layout.params, tuple(memo[pieces] for pieces in layout.ranks))


def padded_vocabulary(
    params: Mapping[str, ParamInfo], cuts: Mapping[str, Cut], multiple: int
) -> dict[str, Cut]:
    """Cuts whose embedding and head have rows of padding up to a multiple.

    ``multiple``: of rows, such as 128 times the tensor-parallel size.
    """
    out = dict(cuts)
    for name, cut in cuts.items():
        if cut.layer is None and cut.axis == 0:
            rows = params[name].shape[0]
            out[name] = replace(cut, padded=-(-rows // multiple) * multiple)
    return out


def _fuse(
    pieces: Sequence[Piece], params: Mapping[str, ParamInfo], of_name: Mapping[str, Fused]
) -> Iterator[Piece]:
    held: dict[str, list[Piece]] = {}
    for piece in pieces:
        held.setdefault(piece.name, []).append(piece)
    done: set[str] = set()
    for piece in pieces:
        fused = of_name.get(piece.name)
        if fused is None:
            yield piece
        elif fused.key not in done:
            done.add(fused.key)
            yield from _rows_of(fused, [_only(name, held, params) for name in fused.names], params)


def _only(name: str, held: Mapping[str, Sequence[Piece]], params: Mapping[str, ParamInfo]) -> Box:
    boxes = [piece.box for piece in held.get(name, ())]
    if len(boxes) != 1 or boxes[0].shape[1:] != params[name].shape[1:]:
        raise ConfigError(
            f"'{name}' cannot share a buffer: a rank holds {len(boxes)} parts of it, or part of "
            "its rows' width; only runs of whole rows can be fused"
        )
    return boxes[0]


def _rows_of(
    fused: Fused, boxes: Sequence[Box], params: Mapping[str, ParamInfo]
) -> Iterator[Piece]:
    """Runs of every parameter in turn, group by group."""
    last, whole = boxes[-1], params[fused.names[-1]].shape[0]
    groups = max(fused.groups * last.shape[0] // whole, 1)
    if any(box.shape[0] % groups for box in boxes):
        raise ConfigError(
            f"'{fused.key}': rows {[box.shape[0] for box in boxes]} of a rank do not divide into "
            f"{groups} groups"
        )
    start = 0
    for group in range(groups):
        for name, box in zip(fused.names, boxes, strict=True):
            rows = box.shape[0] // groups
            part = Box(
                (box.offset[0] + group * rows, *box.offset[1:]),
                (rows, *box.shape[1:]),
            )
            yield Piece(name, part, LocalView(fused.key, start, strides(part.shape)))
            start += part.size


def _apart(piece: Piece, cut: Cut) -> Iterator[Piece]:
    if not cut.experts or cut.expert is not None:
        yield piece
        return
    parent, _, leaf = piece.name.rpartition(".")
    box, view = piece.box, piece.view
    for number in range(box.shape[0]):
        expert = box.offset[0] + number
        one = Box((expert, *box.offset[1:]), (1, *box.shape[1:]))
        key = f"{parent}.{expert}.{leaf}"
        yield Piece(piece.name, one, LocalView(key, view.offset, view.stride))

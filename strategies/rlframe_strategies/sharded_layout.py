"""Where ``fsdp`` keeps weights: cut by tensor rank, each cut sharded by its first dimension."""

from __future__ import annotations

from collections.abc import Mapping

from rlframe.weights.layout import Box, Layout, ParamInfo, Piece
from rlframe_strategies.grid import Sizes

__all__ = ["dim0_layout", "sharded_layout"]


def dim0_layout(params: Mapping[str, ParamInfo], world: int) -> Layout:
    """Chunks of ceil(n / world) rows of each parameter; the last ranks may hold none."""
    return sharded_layout(Layout.full(params), Sizes(dp=world))


def sharded_layout(tensor: Layout, sizes: Sizes) -> Layout:
    """All ranks' pieces; ``tensor`` is the layout over the ``sizes.tp`` tensor ranks alone.

    Shard i of a tensor rank has the rows i * c to (i + 1) * c of that rank's own n, with c =
    ceil(n / shards). A parameter that both cut by rows so lies in strided order: neighbouring rows
    are on neighbouring shards of one tensor rank.
    """
    memo: dict[tuple[int, int], tuple[Piece, ...]] = {}
    ranks = []
    for rank in range(sizes.world):
        place = sizes.place(rank)
        at = (place.shard, place.tensor)
        if at not in memo:
            pieces = tensor.ranks[place.tensor]
            memo[at] = tuple(_rows(piece, place.shard, sizes.shards) for piece in pieces)
        ranks.append(memo[at])
    return Layout(tensor.params, tuple(ranks))


def _rows(piece: Piece, shard: int, shards: int) -> Piece:
    assert piece.view.offset == 0, f"'{piece.name}' has several blocks in one buffer"
    count, *rest = piece.box.shape
    size = -(-count // shards)
    start, end = min(shard * size, count), min((shard + 1) * size, count)
    box = Box((piece.box.offset[0] + start, *piece.box.offset[1:]), (end - start, *rest))
    return Piece(piece.name, box, piece.view)

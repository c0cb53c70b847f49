from __future__ import annotations

import numpy as np
import pytest
import torch

from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe.weights.layout import Box, Layout, LocalView, Move, ParamInfo, Piece, Plan
from rlframe.weights.moving import Mover, components
from rlframe.weights.storage import allocate, local_view
from rlframe_plugins.resharders.planner import missing_moves
from rlframe_strategies.fsdp import dim0_layout

pytestmark = pytest.mark.dist

PARAMS = {
    "a": ParamInfo((8, 6), "float32"),
    "b": ParamInfo((7,), "float32"),
    "c": ParamInfo((5, 4), "bfloat16"),
    "d": ParamInfo((1, 3), "float32"),
}


def canonical(name: str) -> torch.Tensor:
    info = PARAMS[name]
    seed = sum(map(ord, name))
    values = np.random.default_rng(seed).standard_normal(info.shape)
    return torch.tensor(values).to(getattr(torch, info.dtype))


def columns(world: int, groups: int) -> Layout:
    """The last dimension in ``groups`` parts, dealt to the ranks in turn."""
    ranks = []
    for rank in range(world):
        pieces = []
        for name, info in PARAMS.items():
            cuts = np.linspace(0, info.shape[-1], groups + 1).astype(int)
            low, high = cuts[rank % groups], cuts[rank % groups + 1]
            shape = (*info.shape[:-1], int(high - low))
            box = Box((*(0,) * (len(shape) - 1), int(low)), shape)
            strides = (shape[-1], 1) if len(shape) == 2 else (1,)
            pieces.append(Piece(name, box, LocalView(name, 0, strides)))
        ranks.append(tuple(pieces))
    return Layout(PARAMS, tuple(ranks))


def filled(layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    types = {name: getattr(torch, info.dtype) for name, info in PARAMS.items()}
    buffers = allocate(layout.ranks[rank], types, torch.device("cpu"))
    for piece in layout.ranks[rank]:
        if piece.box.size:
            local_view(piece, buffers[piece.view.key])[:] = canonical(piece.name)[
                piece.box.slices()
            ]
    return buffers


def reshard(rank: RankInfo, source: Layout, target: Layout, bucket_mib: int) -> dict:
    join(rank)
    plan = Plan(source, target, tuple(missing_moves(source, target)))
    mover = Mover(plan, rank.rank, torch.device("cpu"), bucket_mib=bucket_mib)
    mover.run(filled(source, rank.rank))
    out = mover.run(filled(source, rank.rank))
    for piece in target.ranks[rank.rank]:
        if piece.box.size:
            found = local_view(piece, out[piece.view.key])
            assert torch.equal(found, canonical(piece.name)[piece.box.slices()]), piece
    return {"received": mover.received, "gathers": [b.gather for b in mover._buckets]}


@pytest.mark.parametrize("bucket_mib", [0, 64])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (dim0_layout(PARAMS, 4), Layout.full(PARAMS, 4)),
        (dim0_layout(PARAMS, 4), columns(4, 2)),
        (columns(4, 2), dim0_layout(PARAMS, 4)),
        (columns(4, 4), columns(4, 2)),
        (columns(4, 2), columns(4, 4)),
    ],
)
def test_each_rank_ends_with_the_exact_target(source, target, bucket_mib):
    run_ranks(reshard, 4, source, target, bucket_mib)


def test_shards_to_whole_tensors_is_one_gather_a_bucket():
    seen = run_ranks(reshard, 4, dim0_layout(PARAMS, 4), Layout.full(PARAMS, 4), 64)
    assert all(one["gathers"] == [True] for one in seen)
    size = sum(int(np.prod(p.shape)) * getattr(torch, p.dtype).itemsize for p in PARAMS.values())
    assert sum(one["received"] for one in seen) == 3 * size


def test_ranks_that_exchange_nothing_are_apart():
    moves = tuple(Move("a", Box((0, 0), (1, 1)), s, t) for s, t in [(0, 2), (2, 0), (3, 1)])
    plan = Plan(dim0_layout(PARAMS, 5), dim0_layout(PARAMS, 5), moves)
    assert components(plan) == [(0, 2), (1, 3)]


def test_released_storage_is_made_again():
    plan = Plan(Layout.full(PARAMS), Layout.full(PARAMS), ())
    run_ranks(_release, 1, plan)


def _release(rank: RankInfo, plan: Plan) -> None:
    join(rank)
    mover = Mover(plan, 0, torch.device("cpu"))
    first = mover.run(filled(plan.source, 0))
    assert mover.extra_bytes == sum(t.numel() * t.element_size() for t in first.values())
    mover.release()
    assert mover.extra_bytes == 0
    again = mover.run(filled(plan.source, 0))
    assert all(torch.equal(again[name], canonical(name)) for name in PARAMS)
